// A sandbox provider without isolation, for Node, without generated code: all
// that a provider in another language has to do.
'use strict';
const grpc = require('@grpc/grpc-js');

// 1. Refuse to run by hand.
if (!process.env.BERTH_SANDBOX_PLUGIN) {
  console.error('berthd starts this program, see berth-plugin(7)');
  process.exit(2);
}
// 2. End with the daemon: standard input ends when it does.
process.stdin.on('end', () => process.exit(0)).resume();

// 3. One message type: google.protobuf.BytesValue around JSON.
function encode(value) {
  const body = Buffer.from(JSON.stringify(value));
  const head = [0x0a]; // field 1, length-delimited
  let n = body.length;
  while (n > 127) { head.push((n & 127) | 128); n >>>= 7; }
  head.push(n);
  return Buffer.concat([Buffer.from(head), body]);
}
function decode(message) {
  if (message.length === 0) return null; // the field's default
  let at = 1;
  while (message[at++] & 128);
  return JSON.parse(message.subarray(at).toString());
}

// 4. Four methods.
const fail = (reason, message, retryable = false) => ({ error: { reason, message, retryable } });
const badHandle = (h) => !/^[A-Za-z0-9_.-]{1,255}$/.test(h ?? '') || h === '.' || h === '..';
const methods = {
  Describe: () => ({ result: { kind: process.env.BERTH_PROVIDER, version: '1', contract: 1, capabilities: ['terminal'] } }),
  Prepare: (q) => badHandle(q.handle) ? fail('invalid_request', 'bad handle') : ({ result: {
    version: 1, argv: q.command, env: [`PATH=${process.env.PATH}`, ...(q.env ?? [])], dir: q.workspace,
    set_ids: process.env.BERTH_DAEMON_UID === '0', uid: q.uid, gid: q.gid, groups: q.groups,
    no_new_privileges: true, cgroup: q.limits,
  } }),
  Observe: (q) => badHandle(q.handle) ? fail('invalid_request', 'bad handle') : ({ result: { presence: 'absent' } }),
  Release: (q) => badHandle(q.handle) ? fail('invalid_request', 'bad handle') : ({ result: {} }),
};
const definition = {}, handlers = {};
for (const [name, method] of Object.entries(methods)) {
  definition[name] = {
    path: `/berth.sandbox.v1.Provider/${name}`, requestStream: false, responseStream: false,
    requestSerialize: encode, requestDeserialize: decode, responseSerialize: encode, responseDeserialize: decode,
  };
  handlers[name] = (call, done) => done(null, method(call.request));
}

// 5. Listen in the directory that the daemon made, then say so on one line.
const path = `${process.env.PLUGIN_UNIX_SOCKET_DIR}/socket`;
const server = new grpc.Server();
server.addService(definition, handlers);
server.bindAsync(`unix:${path}`, grpc.ServerCredentials.createInsecure(), (err) => {
  if (err) { console.error(err.message); process.exit(1); }
  console.log(`1|1|unix|${path}|grpc|`);
});
