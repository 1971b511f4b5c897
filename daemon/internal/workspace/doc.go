// Package workspace is the program berth-workspace: it works on a session's
// workspace as the session's user and inside a cgroup of its own. It says what
// would be lost with the workspace, or saves that; and it does one step of
// filling a new one: copy, clone, checkout, or a setup command.
//
// An agent has written what is read here, repositories with their configuration
// included: git runs with hooks, filters, file system monitors, pagers and
// transports off, its output is bounded, and what cannot be read is unknown,
// never nothing. The package trusts no answer to be the truth about an agent
// that wants to hide its own work; it protects the work of those who do not.
package workspace
