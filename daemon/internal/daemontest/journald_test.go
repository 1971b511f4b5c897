package daemontest

import (
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/systemd/journald/catalog"
	"github.com/berthd/berth/systemd/systemdtest"
)

// toJournald is the configuration of a daemon that logs to journald.
const toJournald = "[log]\nformat = \"journald\"\n"

// journalOf returns the entries that journald has with all the matches.
func journalOf(t *testing.T, matches ...string) []map[string]any {
	t.Helper()
	if out, err := exec.Command("journalctl", "--sync").CombinedOutput(); err != nil {
		t.Fatalf("journalctl --sync: %v\n%s", err, out)
	}
	out, err := exec.Command("journalctl", append([]string{"-o", "json", "--all", "-q"}, matches...)...).Output()
	if err != nil {
		t.Fatalf("journalctl %q: %v", matches, err)
	}
	var all []map[string]any
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var e map[string]any
		if err := d.Decode(&e); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
}

// audit returns the durable events of a session as journald has them, each once
// by its number, for a host.
func (h *Host) audit(t *testing.T, session string) (kinds []string, last map[string]any) {
	t.Helper()
	seen := map[string]bool{}
	for _, e := range journalOf(t, "BERTH_SESSION="+session, "BERTH_HOST="+h.ID(), "BERTH_SUBSYSTEM=audit") {
		if seq := fmt.Sprint(e["BERTH_SEQ"]); !seen[seq] {
			seen[seq] = true
			kinds, last = append(kinds, fmt.Sprint(e["BERTH_EVENT"])), e
		}
	}
	return kinds, last
}

// untilAudited waits until journald has all events that the daemon has of a
// session, and compares.
func (h *Host) untilAudited(t *testing.T, session string) {
	t.Helper()
	h.Until("journald has the events of "+session, patience, func() error {
		var want []string
		for _, e := range h.eventsOf(t, session) {
			want = append(want, e.Kind)
		}
		if got, _ := h.audit(t, session); strings.Join(got, " ") != strings.Join(want, " ") {
			return fmt.Errorf("it has\n%q, the daemon\n%q", got, want)
		}
		return nil
	})
}

// case T62: journalctl BERTH_SESSION=x reads as the session's audit log, from
// its start to its tombstone, over a kill of the daemon in the middle.
func TestAuditInJournald(t *testing.T) {
	systemdtest.Inside(t)
	h := running(t, toJournald)
	started := h.mustStartAs(t, "audited", rpc.StartRequest{Spec: shell("[ -e ran ] && exit 3; touch ran; exec sleep 1000"), Key: "first"})
	h.Kill()
	h.Start()
	h.untilAdopted(t, started)
	h.mustStop(t, "audited")
	h.untilAudited(t, "audited")
	h.mustStartAs(t, "audited", rpc.StartRequest{Key: "second"})
	h.untilVacant(t, "audited")
	h.untilAudited(t, "audited")
	h.mustDelete(t, "audited")
	h.untilAudited(t, "audited")
	_, last := h.audit(t, "audited")
	deleted, _ := catalog.Of("deleted")
	if last["MESSAGE_ID"] != deleted.ID || last["PRIORITY"] != "6" || last["BERTH_GENERATION"] != "2" {
		t.Errorf("the last entry is %v", last)
	}
	for field, want := range map[string]string{
		"BERTH_EVENT=allocate BERTH_OPERATION=first BERTH_PROVIDER=process BERTH_GENERATION=1": "starting",
		"BERTH_EVENT=attempt_absent BERTH_GENERATION=1 BERTH_INSTANCE=" + started.Instance:     "vacant",
		"BERTH_EVENT=owned_absent BERTH_GENERATION=2 BERTH_OWNER=" + strconv.Itoa(Nobody):      "vacant",
	} {
		found := journalOf(t, append(strings.Fields(field), "BERTH_SESSION=audited", "BERTH_HOST="+h.ID())...)
		if len(found) != 1 || found[0]["BERTH_STATE"] != want {
			t.Errorf("%s: %v", field, found)
		}
	}
	if found := journalOf(t, "BERTH_SESSION=audited", "BERTH_EXIT=code 3", "BERTH_HOST="+h.ID()); len(found) != 1 {
		t.Errorf("entries with the agent's end: %v", found)
	}
}
