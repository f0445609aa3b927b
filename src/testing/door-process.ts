// A coordinator's door in a process of its own, for tests that measure its memory: `node --expose-gc door-process.js
// STATE_FOLDER`. Prints its URL and code, and for each line on stdin the bytes of memory that the process has without
// its garbage.

import { createInterface } from 'node:readline';
import { systemClock } from '../clock.ts';
import { InputError } from '../errors.ts';
import { coordinatorName, openDoor } from '../runtime/host/security/admission.ts';
import { listen } from '../transport/node/websocket-server.ts';

const [, , folder] = process.argv;
if (folder === undefined) throw new InputError('The state folder is missing: node door-process.js FOLDER.');
const door = await openDoor({ host: '192.0.2.1', insecure: false, clock: systemClock, folder });
const server = await listen({
  host: '127.0.0.1',
  port: 0,
  name: coordinatorName,
  ...(door.tls && { tls: door.tls }),
  authenticate: (hello, _address, certificate) => door.admit(hello, certificate),
  onLink: () => {},
  failures: { burstCount: 1000, regainMs: 1 },
});
const say = (value: unknown): boolean => process.stdout.write(`${JSON.stringify(value)}\n`);
say({ url: server.url, port: server.port, joinCode: door.joinCode });
for await (const _ of createInterface({ input: process.stdin })) {
  globalThis.gc?.();
  say({ rssBytes: process.memoryUsage.rss() });
}
await server.close('over');
