// Command notices tells what berth's programs are made of: from what the linker
// wrote into them it makes the text of all licences that go with them, and a
// bill of materials in CycloneDX's JSON form. Both depend on the programs alone.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "notices:", err)
		os.Exit(1)
	}
}

func run() error {
	text := flag.String("licences", "", "write the licences to this `file`")
	sbom := flag.String("sbom", "", "write the bill of materials to this `file`")
	version := flag.String("version", "", "the `version` of the programs")
	seconds := flag.Int64("time", 0, "when they were made, in `seconds` since 1970")
	flag.Parse()
	main, modules, err := linked(flag.Args())
	if err != nil {
		return err
	}
	dirs, err := directories(modules)
	if err != nil {
		return err
	}
	for _, m := range modules {
		if err := m.readNotices(dirs[m.Path]); err != nil {
			return err
		}
	}
	if err := writeFile(*text, licenceText(modules)); err != nil {
		return err
	}
	bill, err := billOfMaterials(main, *version, time.Unix(*seconds, 0).UTC(), flag.Args(), modules)
	if err != nil {
		return err
	}
	return writeFile(*sbom, bill)
}

func writeFile(path string, data []byte) error {
	if path == "" {
		return nil
	}
	return os.WriteFile(path, data, 0o644)
}
