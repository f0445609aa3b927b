// A device that joins, loses its coordinator and comes back: over a relay that cuts the connection.

import assert from 'node:assert/strict';
import { connect as connectSocket, createServer, type Server, type Socket } from 'node:net';
import { networkInterfaces } from 'node:os';
import { test } from 'node:test';
import { systemClock } from '../../clock.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import { InputError } from '../../errors.ts';
import type { Link } from '../../transport/link.ts';
import { type LinkServer, listen } from '../../transport/node/websocket-server.ts';
import { message } from '../protocol/messages.ts';
import { type JoinOptions, joinRun } from './join.ts';

const isIpv6Here = Object.values(networkInterfaces()).some((found) => found?.some(({ address }) => address === '::1'));

interface Relay {
  readonly url: string;
  /** Breaks all connections; with `forGood`, nobody answers any more either. */
  cut(forGood: boolean): void;
}

async function relayTo(target: LinkServer): Promise<Relay & { readonly server: Server }> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    const onward = connectSocket(target.port, '127.0.0.1');
    for (const [one, other] of [
      [socket, onward],
      [onward, socket],
    ] as const) {
      sockets.add(one);
      one.on('error', () => {}).on('close', () => other.destroy());
      one.pipe(other);
    }
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const address = server.address();
  const port = typeof address === 'object' && address !== null ? address.port : 0;
  const cut = (forGood: boolean): void => {
    if (forGood) server.close();
    for (const socket of sockets) socket.resetAndDestroy();
  };
  return { url: `ws://127.0.0.1:${port}`, cut, server };
}

function coordinator(
  onLink: (link: Link, count: number) => void,
  host = '127.0.0.1',
  facts?: Readonly<Record<string, unknown>>,
): Promise<LinkServer> {
  let count = 0;
  return listen({
    host,
    port: 0,
    name: 'coordinator',
    authenticate: ({ credential, name }) =>
      credential === 'code'
        ? { kind: 'accepted', name, ...(facts && { facts }) }
        : { kind: 'refused', reason: 'the join code is wrong', retry: false },
    onLink: (link) => onLink(link, ++count),
  });
}

function join(url: string, more: Partial<JoinOptions> = {}): ReturnType<typeof joinRun> {
  return joinRun({
    url,
    name: 'board',
    joinCode: () => Promise.resolve('code'),
    insecure: false,
    clock: systemClock,
    signal: new AbortController().signal,
    createEngine: async () => createReferenceEngine(),
    onJoined: () => {},
    ...more,
  });
}

test('after a lost link the device joins again, and the run ends as it would have', { timeout: 20_000 }, async () => {
  const asked: string[] = [];
  const events: string[] = [];
  const server = await coordinator((link, count) => {
    if (count === 2) void link.send(message('end', { reason: 'the run is done' }), 'control');
  });
  const relay = await relayTo(server);
  const end = await join(relay.url, {
    reconnectMs: 10_000,
    joinCode: async () => {
      asked.push('code');
      return 'code';
    },
    onJoined: (name) => {
      if (events.push(`joined as ${name}`) === 1) setImmediate(() => relay.cut(false));
    },
    onLost: () => events.push('lost'),
  });
  assert.deepEqual(end, { clean: true, reason: 'the run is done' });
  assert.deepEqual(events, ['joined as board', 'lost', 'joined as board']);
  assert.deepEqual(asked, ['code']);
  relay.cut(true);
  await server.close('over');
});

test('a device that cannot reconnect in time reports why; after a wrong code it does not try again', {
  timeout: 20_000,
}, async () => {
  const server = await coordinator(() => {});
  const relay = await relayTo(server);
  const end = await join(relay.url, { reconnectMs: 1_200, onJoined: () => setImmediate(() => relay.cut(true)) });
  assert.equal(end.clean, false);
  assert.match(end.reason, /^the coordinator is gone: the connection was lost/);
  await assert.rejects(
    join(server.url, { joinCode: () => Promise.resolve('guess'), reconnectMs: 60_000 }),
    (error) => error instanceof InputError && error.message === 'the join code is wrong',
  );
  await server.close('over');
});

test('a device that its owner stops does not reconnect', { timeout: 20_000 }, async () => {
  const controller = new AbortController();
  const server = await coordinator(() => {});
  const lost: string[] = [];
  await join(server.url, {
    signal: controller.signal,
    reconnectMs: 60_000,
    onJoined: () => setImmediate(() => controller.abort()),
    onLost: (reason) => lost.push(reason),
  });
  assert.deepEqual(lost, []);
  await server.close('over');
});

test('peers dial what is advertised, else where the device listens or, at a chosen port, where seen', async () => {
  const end = message('end', { reason: 'the run is done' });
  const placeOf = async (more: Partial<JoinOptions>, seen = '203.0.113.7', host = '127.0.0.1'): Promise<unknown> => {
    const server = await coordinator((link) => void link.send(end, 'control'), host, { address: seen });
    const places: unknown[] = [];
    await join(server.url, { ...more, onJoined: (_, place) => places.push(place) });
    await server.close('over');
    return places[0];
  };
  const encrypted = false;
  const seenAs = '203.0.113.7';
  assert.deepEqual(await placeOf({}, '127.0.0.1'), { host: '127.0.0.1', encrypted });
  assert.deepEqual(await placeOf({}), { host: '127.0.0.1', seenAs, encrypted });
  assert.deepEqual(await placeOf({ host: '0.0.0.0' }), { host: '127.0.0.1', seenAs, encrypted });
  assert.deepEqual(await placeOf({ port: 7800 }), { host: seenAs, seenAs, encrypted });
  const advertised = { host: 'desk.example.org', port: 7800 };
  assert.deepEqual(await placeOf({ advertised }), { ...advertised, seenAs, encrypted });
  // What a coordinator says is looked at: an address, or nothing.
  assert.deepEqual(await placeOf({ port: 7800 }, 'not an address'), { host: '127.0.0.1', encrypted });
  if (isIpv6Here) assert.deepEqual(await placeOf({}, '::1', '::1'), { host: '127.0.0.1', encrypted });
});
