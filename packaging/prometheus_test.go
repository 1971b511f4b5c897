package packaging

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// series are the names under which the daemon's metrics can be asked for.
func series(t *testing.T) map[string]bool {
	t.Helper()
	sources, err := filepath.Glob("../daemon/internal/metrics/*.go")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{"up": true} // Prometheus' own, of each target
	for _, path := range sources {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, m := range regexp.MustCompile(`p\.(counter|gauge|histogram)\("(\w+)", "`).FindAllStringSubmatch(string(source), -1) {
			if names[m[2]] = true; m[1] == "histogram" {
				delete(names, m[2])
				names[m[2]+"_bucket"], names[m[2]+"_sum"], names[m[2]+"_count"] = true, true, true
			}
		}
	}
	if len(names) < 20 {
		t.Fatalf("only %d metrics were found in %q", len(names), sources)
	}
	return names
}

// asked finds the names of series in an expression: words that are no function,
// no label, no value of one, no keyword and no variable.
func asked(expr string) []string {
	expr = regexp.MustCompile(`"[^"]*"|\$\w+|\$\{\w+\}`).ReplaceAllString(expr, "")
	expr = regexp.MustCompile(`\b(by|without|on|ignoring|label_values) *\([^()]*\)`).ReplaceAllStringFunc(expr, func(m string) string {
		if rest, ok := strings.CutPrefix(m, "label_values("); ok {
			name, _, _ := strings.Cut(rest, ",")
			return name
		}
		return ""
	})
	expr = regexp.MustCompile(`\{[^}]*\}|\[[^\]]*\]`).ReplaceAllString(expr, "")
	expr = regexp.MustCompile(`\w+ *\(|\b(and|or|unless|bool|offset)\b`).ReplaceAllString(expr, "(")
	return regexp.MustCompile(`\b[a-z_]\w*\b`).FindAllString(expr, -1)
}

// exist expects at least one series in an expression, and that the daemon has all of them.
func exist(t *testing.T, where, expr string, names map[string]bool) {
	t.Helper()
	found := asked(expr)
	if len(found) == 0 {
		t.Errorf("%s: no metric in %q", where, expr)
	}
	for _, name := range found {
		if !names[name] {
			t.Errorf("%s: %q: the daemon has no %q, only %q", where, expr, name, slices.Sorted(maps.Keys(names)))
		}
	}
}

// Every metric of an alert exists, and every alert says what it means and what
// to do.
func TestAlerts(t *testing.T) {
	names := series(t)
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Expr        string
				Labels      map[string]string
				Annotations map[string]string
			}
		}
	}
	readYAML(t, "prometheus/alerts.yml", &rules)
	seen := map[string]bool{}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			exist(t, r.Alert, r.Expr, names)
			if seen[r.Alert] || r.Annotations["summary"] == "" || r.Annotations["description"] == "" ||
				!slices.Contains([]string{"warning", "critical"}, r.Labels["severity"]) {
				t.Errorf("%s: a name, severity, summary or description is missing or comes twice", r.Alert)
			}
			seen[r.Alert] = true
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %d alerts were read", len(seen))
	}
}

// Every metric of the dashboard exists.
func TestDashboard(t *testing.T) {
	names := series(t)
	data, err := os.ReadFile("prometheus/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	type panel struct {
		Title   string
		Type    string
		Targets []struct{ Expr string }
	}
	var board struct {
		Panels     []panel
		Templating struct {
			List []struct {
				Name, Type string
				Definition string
			}
		}
	}
	if err := json.Unmarshal(data, &board); err != nil {
		t.Fatal(err)
	}
	shown := 0
	for _, p := range board.Panels {
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			exist(t, p.Title, target.Expr, names)
			shown++
		}
	}
	for _, v := range board.Templating.List {
		if v.Type == "query" {
			exist(t, v.Name, v.Definition, names)
		}
	}
	if shown < 20 {
		t.Errorf("only %d expressions were read", shown)
	}
}

// The example asks where the manual page has the daemon listen, and all of it
// is what Prometheus' own tool takes, where that is installed.
func TestScrapeConfiguration(t *testing.T) {
	var c struct {
		RuleFiles     []string `yaml:"rule_files"`
		ScrapeConfigs []struct {
			JobName       string                       `yaml:"job_name"`
			StaticConfigs []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	readYAML(t, "prometheus/prometheus.yml", &c)
	page, err := os.ReadFile("../man/berth-metrics.7")
	if err != nil {
		t.Fatal(err)
	}
	listen := regexp.MustCompile(`listen = "(.*)"`).FindSubmatch(page)
	if len(c.ScrapeConfigs) != 1 || c.ScrapeConfigs[0].JobName != "berth" || listen == nil ||
		c.ScrapeConfigs[0].StaticConfigs[0].Targets[0] != string(listen[1]) {
		t.Errorf("the example %+v and the manual page, %q, do not agree", c, listen)
	}
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("promtool is not installed: only read, not checked")
	}
	run(t, nil, "promtool", "check", "rules", "prometheus/alerts.yml")
	run(t, nil, "promtool", "check", "config", "--syntax-only", "prometheus/prometheus.yml")
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(data, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
