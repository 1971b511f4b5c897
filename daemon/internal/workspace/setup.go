package workspace

import (
	"context"
	"os/exec"
	"slices"
)

// setup gives a command to a shell in the workspace. It is the client's own, and
// the agent's program could do the same: it has the environment of the agent.
func (p *preparation) setup(ctx context.Context) error {
	if err := p.stamp(false); err != nil {
		return err
	}
	cmd := exec.Command("/bin/sh", "-c", p.Command)
	cmd.Dir = p.root
	cmd.Env = slices.Concat([]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + p.Home, "PWD=" + p.root,
		"GIT_TERMINAL_PROMPT=0",
	}, p.Env)
	return p.run(ctx, cmd)
}
