package effect

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/berthd/berth/daemon/internal/engine"
	"golang.org/x/sys/unix"
)

// TestUnusable: a failure of berth's own file system may be tried again under
// its key; others stay what they are. case E10
func TestUnusable(t *testing.T) {
	t.Parallel()
	for _, errno := range []unix.Errno{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EIO} {
		err := unusable(fmt.Errorf("making: %w", &fs.PathError{Op: "mkdir", Path: "/x", Err: errno}))
		var r *engine.Refusal
		if !errors.As(err, &r) || r.Code != "FILESYSTEM_UNUSABLE" || !r.Retryable {
			t.Errorf("%v is %#v", errno, err)
		}
	}
	if err := error(unix.EACCES); unusable(err) != err {
		t.Error("a refused access has become another error")
	}
}
