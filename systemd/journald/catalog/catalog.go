// Package catalog is the list of messages that berth gives a MESSAGE_ID: one for
// each kind of transition, and some about the daemon itself. The file
// berth.catalog beside it says for journalctl -x what each one means and what to
// do; man/berth-journald.7 lists them.
//
// An id never changes, and never comes to mean something else: people have it in
// scripts. The package imports nothing.
package catalog

// Message is one kind of entry.
type Message struct {
	// Event is the word in the field BERTH_EVENT.
	Event string
	// ID is the MESSAGE_ID, 32 hexadecimal digits.
	ID string
	// Level is debug, info, warn or error.
	Level string
	// Text is what an entry says first.
	Text string
}

// messages is the list, in the order of berth.catalog.
var messages = [...]Message{
	{"allocate", "334012572bd04474ae4703df7a92fb08", "info", "the intent to start is recorded"},
	{"verified", "20e52dac6001464a99cb827721014c4a", "info", "the wrapper is verified"},
	{"accepted", "00d60e4e4be4488d8ef5212fcfc0abcd", "info", "work was accepted"},
	{"idle", "4f8721727f28407ca771325850833f9c", "info", "the work is done"},
	{"reuse", "cfc3e072ca4d44af947647049d9f1d59", "info", "the instance is used again"},
	{"owned_absent", "3879f6b739964b7292f86fb1c3977fc9", "info", "the instance has ended"},
	{"request_stop", "3b045347d6ed4e02b6527729da2e9ee3", "info", "a stop is recorded"},
	{"begin_attempt", "30806dc58a4041ffb29abad802e47b77", "info", "an attempt to stop begins"},
	{"attempt_absent", "e1512fb9b6f841c98775336b14edea41", "info", "the session is stopped"},
	{"attempt_not_confirmed", "15d5fadb9dce4a168528651afd53b6f1", "warn", "an attempt to stop did not succeed"},
	{"attempt_expired", "d2be6efa65494d5ba241e6b4487b08aa", "warn", "an attempt to stop took too long"},
	{"exhaust", "28bbad4eee3c41e48b228cd92e12c8ff", "error", "the session is quarantined"},
	{"recheck_absent", "3107005cf5094e88b3e6e2fa4326c4be", "info", "the quarantine has ended"},
	{"recheck_done", "0f9b3ea8bc55460a999c7e3099170ffd", "warn", "something is still there"},
	{"new_epoch", "523185a070764f8289bb38b0a069088d", "info", "the host was restarted"},
	{"link_lost", "81324c2cad9c43fbb7a0d0c567190d57", "info", "the wrapper's connection is lost"},
	{"link_regained", "82fce9bab4ba499ba1e6233269df38a4", "info", "the wrapper is connected again"},
	{"frozen", "0dc582c062fd4f7d8a8f4dd369bf53dd", "info", "the session is frozen"},
	{"thawed", "82bc40049be04597a1be58cf4f9a8b6e", "info", "the session is thawed"},
	{"adopt", "47871d0bba3e451c843286f4c9f611af", "warn", "an operator has adopted the wrapper"},
	{"abandon", "a933377be2c24dd49503af04ae701897", "warn", "an operator has abandoned the instance"},
	{"worker_stuck", "80f875ee13094a5693fc85407bc86ddc", "error", "the kernel holds an attempt"},
	{"recheck_due", "8c2db2348eb541f5abd5102d7249ffce", "info", "a quarantined session is looked at"},
	{"recheck_forced", "578cead4b67e4762928f6a9ad72f3c73", "info", "a quarantined session is looked at, as asked"},
	{"floor_raised", "84d231d018994347ae6b0fa39d3221a0", "warn", "generations are raised"},
	{"unreadable", "b94564f5ed1d48bf9cb9fc5917f63437", "error", "the lease cannot be read"},
	{"delete_requested", "09781387473b48799829f0c6880e5a8d", "info", "the deletion is recorded"},
	{"delete_step", "fa9faf835aa34bf7b81f61118032f4a1", "info", "the deletion goes on to its next step"},
	{"delete_held_up", "6777f9dabee54171a5aa77f66eb8b32f", "warn", "the deletion is held up"},
	{"delete_trashed", "648c6a7feb9c43b5b16af45c8ebf0ce5", "info", "the workspace is in the trash"},
	{"deleted", "e9ba3a4d1778491593f339b11068b3c3", "info", "the session is deleted"},
	{"released", "bac4322cdc954379b79bb30195eb2373", "info", "the sandbox is released"},
	{"release_held_up", "a0bc911e9de24f9ab38b49f116ffad12", "warn", "the sandbox is not released yet"},
	{"workspace_step", "cdd458dd699e48bd8e4334e9f91cfecc", "info", "a step of preparing the workspace has ended"},
	{"workspace_reclaim", "b258c7432fd44b268a6e42d882fe97b7", "info", "the workspace is to go, to make room"},
	{"workspace_reclaimed", "bb9440a749484b52a529ad464d206c6e", "info", "the workspace is gone, to make room"},
	{"workspace_kept", "4c8cb98b62eb42c99e49dc581ade42c3", "info", "the workspace was not given up after all"},
	{"gap", "9e9d86d97551437dba61c5936936a4f8", "warn", "events are missing here"},
	{"daemon_started", "033536cf5dbe44ebbb5502c1e014b41c", "info", "serving"},
	{"daemon_ended", "e18fd4077e3d4d858f44928f92025475", "info", "ending; wrappers live on"},
	{"journal_failed", "5532e13ff4834cfba38f32194e6a0397", "error", "the journal has failed"},
	{"provider_failed", "b60428aab06f499f9b81974c01d2e797", "warn", "plugin failed"},
	{"log_dropped", "843fe70ab7d148f8868b348e965cef68", "warn", "log entries are missing here"},
	{"agent_dropped", "4feda598555544aa90521565a9203269", "warn", "lines of output are missing here"},
}

// Messages returns the list; the slice is the caller's.
func Messages() []Message { return append([]Message(nil), messages[:]...) }

// Of returns the message of an event; ok is false when there is none.
func Of(event string) (m Message, ok bool) {
	for i := range messages {
		if messages[i].Event == event {
			return messages[i], true
		}
	}
	return Message{}, false
}
