// Package reclaim makes room on a disk that is getting full, carefully: kept
// objects of clones first, then what is in the trash, then workspaces that have not
// been used for a while, that hold nothing of value, and that can be made again. It
// goes one by one, oldest first, looks at the disk after each, and stops as soon as
// there is room. What it does not know keeps a workspace.
//
// It decides by package admit and acts through the engine, which puts the decision
// on disk first. It refuses to know what the room is needed for. daemon/internal/api
// asks it when a start finds none, daemon/internal/daemon when the disk is low.
package reclaim
