// Package plugins is the map of what berth has to do with sandbox providers.
// It holds no code.
//
//	sandbox              the contract: Provider, Recipe, errors; standard library only
//	sandbox/serve        a provider's main, and the transport both sides share
//	sandbox/sandboxtest  the conformance suite that any provider runs
//	host                 the daemon's side: verify, start, watch, call, end
//	process              the provider without isolation
//	cmd/berth-sandbox-*  the providers' programs
//
// # Writing a provider
//
// A provider is a program that berthd starts, asks and ends as it sees fit. It
// prepares sandboxes and tells how to enter them; the daemon starts the wrapper
// that does enter, so that nothing that has to live depends on the provider.
// In Go, implement [github.com/berthd/berth/plugins/sandbox.Provider] and pass
// it to serve.Main:
//
//	func main() { os.Exit(serve.Main(provider)) }
//
// In another language, serve/sandbox.proto is the service and
// sandboxtest/testdata/provider.js a whole provider in sixty lines. It has to
//
//   - refuse to run without BERTH_SANDBOX_PLUGIN in its environment;
//   - end when standard input ends: then its daemon is gone or does not want it
//     any more. It gets two seconds, then SIGKILL, as does all of its process
//     group and, where berth has cgroups, all of its cgroup;
//   - listen on a Unix socket in the directory PLUGIN_UNIX_SOCKET_DIR itself, from
//     its own session (setsid(2)), and print one line: "1|1|unix|PATH|grpc|";
//   - write its log to standard error, which is a file;
//   - close descriptor 3, or mark it close-on-exec, before it starts programs
//     that may outlast it: whoever holds it counts as this provider, and is ended
//     before the next one starts.
//
// What it keeps in memory is lost at any time; a handle has to be enough to
// find again what was made for it. Prepare and Release are called again after
// a crash, by the same handle, and make or remove nothing twice. An error is
// one of the closed set of reasons. Not knowing is an answer too (Unknown,
// creation_unsettled); guessing "absent" loses somebody's work.
//
// Its environment is PATH, the locale and time zone, BERTH_HOST,
// BERTH_PROVIDER, BERTH_DAEMON_UID, BERTH_CONTROLLERS (see serve.Surroundings),
// what the configuration adds, and go-plugin's own names. Nothing of it, and
// nothing secret, belongs into a recipe's argv: everybody can read that.
//
// Its tests call sandboxtest.Run on it twice: in process, and as a program
// behind sandboxtest.Plugin.
package plugins
