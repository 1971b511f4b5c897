package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// billOfMaterials lists the programs, each with its checksum and the modules
// that it is made of.
func billOfMaterials(main, version string, made time.Time, programs []string, modules []*module) ([]byte, error) {
	root := cdx.Component{
		BOMRef: "pkg:golang/" + main, Type: cdx.ComponentTypeApplication, Name: main, Version: version,
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	}
	components, dependencies := []cdx.Component{}, []cdx.Dependency{}
	uses := map[string]*[]string{}
	for _, program := range programs {
		c, err := programComponent(program, version)
		if err != nil {
			return nil, err
		}
		components = append(components, c)
		uses[c.Name] = &[]string{}
		dependencies = append(dependencies, cdx.Dependency{Ref: c.BOMRef, Dependencies: uses[c.Name]})
	}
	refs := []string{}
	for _, d := range dependencies {
		refs = append(refs, d.Ref)
	}
	for _, m := range modules {
		c, err := moduleComponent(m)
		if err != nil {
			return nil, err
		}
		components = append(components, c)
		for _, p := range m.Programs {
			*uses[p] = append(*uses[p], c.BOMRef)
		}
	}
	dependencies = append(dependencies, cdx.Dependency{Ref: root.BOMRef, Dependencies: &refs})
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: made.Format(time.RFC3339), Component: &root}
	bom.Components, bom.Dependencies = &components, &dependencies
	var b bytes.Buffer
	err := cdx.NewBOMEncoder(&b, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).Encode(bom)
	return b.Bytes(), err
}

func programComponent(path, version string) (cdx.Component, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return cdx.Component{}, err
	}
	name := filepath.Base(path)
	return cdx.Component{
		BOMRef: "program:" + name, Type: cdx.ComponentTypeApplication, Name: name, Version: version,
		Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sha256.Sum256(data))}},
	}, nil
}

// moduleComponent has the package URL of its kind for modules:
// https://github.com/package-url/purl-spec.
func moduleComponent(m *module) (cdx.Component, error) {
	purl := "pkg:golang/" + strings.ReplaceAll(m.Path, "+", "%2B") + "@" + strings.ReplaceAll(m.Version, "+", "%2B")
	c := cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: purl}
	licences := cdx.Licenses{}
	for _, id := range m.Licences {
		licences = append(licences, cdx.LicenseChoice{License: &cdx.License{ID: id}})
	}
	c.Licenses = &licences
	if m.Sum == "" {
		return c, nil
	}
	sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:"))
	if err != nil {
		return c, fmt.Errorf("%s: checksum %q: %w", m.Path, m.Sum, err)
	}
	c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
	return c, nil
}
