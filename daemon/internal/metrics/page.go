package metrics

import (
	"strconv"
	"strings"
	"time"

	"github.com/berthd/berth/daemon/internal/tally"
)

// contentType names version 0.0.4 of the text form,
// https://prometheus.io/docs/instrumenting/exposition_formats/.
const contentType = "text/plain; version=0.0.4; charset=utf-8"

// page is a text under way. Values go to the family that was begun last; a
// family's head is written with its first value, so that none stands alone.
type page struct {
	text             []byte
	name, help, kind string
	begun            bool
}

func (p *page) counter(name, help string)   { p.family(name, help, "counter") }
func (p *page) gauge(name, help string)     { p.family(name, help, "gauge") }
func (p *page) histogram(name, help string) { p.family(name, help, "histogram") }

func (p *page) family(name, help, kind string) {
	p.name, p.help, p.kind, p.begun = name, help, kind, false
}

// add writes one value with its labels, names and values by turns.
func (p *page) add(value float64, labels ...string) { p.sample("", value, labels...) }

func (p *page) sample(suffix string, value float64, labels ...string) {
	if !p.begun {
		p.begun = true
		p.text = append(p.text, "# HELP "+p.name+" "+helpEscapes.Replace(p.help)+"\n# TYPE "+p.name+" "+p.kind+"\n"...)
	}
	p.text = append(p.text, p.name+suffix...)
	for i := 0; i+1 < len(labels); i += 2 {
		separator := byte(',')
		if i == 0 {
			separator = '{'
		}
		p.text = append(p.text, separator)
		p.text = append(p.text, labels[i]+`="`+labelEscapes.Replace(labels[i+1])+`"`...)
	}
	if len(labels) > 0 {
		p.text = append(p.text, '}')
	}
	p.text = append(p.text, ' ')
	p.text = strconv.AppendFloat(p.text, value, 'g', -1, 64)
	p.text = append(p.text, '\n')
}

// What the text form wants escaped, in help texts and in values of labels.
var (
	helpEscapes  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func (p *page) times(t *tally.Times) { p.classes(t.Read()) }

// classes writes a histogram: counts has one for each bound and one for what is
// above all of them. The form wants each class to include those below.
func (p *page) classes(bounds []time.Duration, counts []uint64, sum time.Duration) {
	total := uint64(0)
	for i, bound := range bounds {
		total += counts[i]
		p.sample("_bucket", float64(total), "le", strconv.FormatFloat(bound.Seconds(), 'g', -1, 64))
	}
	total += counts[len(bounds)]
	p.sample("_bucket", float64(total), "le", "+Inf")
	p.sample("_sum", sum.Seconds())
	p.sample("_count", float64(total))
}
