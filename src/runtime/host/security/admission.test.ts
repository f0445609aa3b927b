// Who gets in over TLS, and who does not: a real server on this machine's loopback address, with real certificates.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { X509Certificate } from 'node:crypto';
import { once } from 'node:events';
import { chmod, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { connect as connectSocket, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, test } from 'node:test';
import { connect as connectTls } from 'node:tls';
import { fileURLToPath } from 'node:url';
import type { Clock } from '../../../clock.ts';
import { InputError, RunError } from '../../../errors.ts';
import { createSelfSigned } from '../../../testing/self-signed.ts';
import type { Hello } from '../../../transport/handshake.ts';
import type { Link } from '../../../transport/link.ts';
import { createIdentity, createRequest, openAuthority } from '../../../transport/node/tls/authority.ts';
import { keyHash } from '../../../transport/node/tls/identity.ts';
import { connect, type TlsOptions } from '../../../transport/node/websocket.ts';
import { type LinkServer, listen } from '../../../transport/node/websocket-server.ts';
import { createPeerNetwork } from '../network.ts';
import { coordinatorName, type Door, isEncrypted, openDoor } from './admission.ts';
import { authorityPath, loadAuthority } from './authority-store.ts';
import { createDeviceStore, type DeviceStore } from './device-store.ts';
import { type Admission, enrol, peerTls } from './enrolment.ts';
import { fleetCode, fleetCodePath, removeFleetCode } from './fleet-code.ts';
import { createRegistry } from './registry.ts';

const folder = await mkdtemp(join(tmpdir(), 'asteroid-admission-'));
after(() => rm(folder, { recursive: true, force: true }));
const stateA = join(folder, 'a');
let nowMs = 0;
const clock: Clock = { now: () => nowMs, after: () => () => {} };

interface Served {
  readonly door: Door;
  readonly server: LinkServer;
  readonly links: Link[];
  readonly refusals: string[];
}

/** A coordinator's door behind a server, as if it listened on an address of the network. */
async function serve(
  files: { readonly tlsCert?: string; readonly tlsKey?: string } = {},
  state = stateA,
): Promise<Served> {
  const door = await openDoor({ host: '192.0.2.1', insecure: false, clock, folder: state, ...files });
  const [links, refusals]: [Link[], string[]] = [[], []];
  const server = await listen({
    host: '127.0.0.1',
    port: 0,
    name: coordinatorName,
    ...(door.tls && { tls: door.tls }),
    authenticate: (hello, _address, certificate) => door.admit(hello, certificate),
    onLink: (link, hello) => {
      if (hello.purpose !== 'enrol') links.push(link);
    },
    onRefused: (_address, reason) => refusals.push(reason),
    failures: { burstCount: 1000, regainMs: 1 },
  });
  return { door, server, links, refusals };
}

function enrolAt(
  { door, server }: Served,
  options: { readonly code?: string; readonly name?: string; readonly store?: DeviceStore } = {},
): Promise<Admission> {
  const { code = door.joinCode, name = 'board', store } = options;
  return enrol({ url: server.url, name, joinCode: () => Promise.resolve(code), ...(store && { store }) });
}

const helloOf = (purpose: Hello['purpose'], name = 'board', credential = ''): Hello => ({
  protocol: 1,
  purpose,
  name,
  credential,
});
const joined = async (served: Served, tls: TlsOptions, name?: string): Promise<string> => {
  const { link, welcome } = await connect(served.server.url, { hello: helloOf('worker', name), tls });
  await link.close('seen');
  return welcome.name;
};
const secretOf = (code: string): string => code.slice(-19);
const isInput = (message: RegExp) => (error: unknown) => error instanceof InputError && message.test(error.message);
const isRun = (message: RegExp) => (error: unknown) => error instanceof RunError && message.test(error.message);

test('links are encrypted beyond this machine, and plain on it', () => {
  assert.equal(isEncrypted({ host: '192.168.1.20', insecure: false }), true);
  assert.equal(isEncrypted({ host: '192.168.1.20', insecure: true }), false);
  for (const host of ['127.0.0.1', '::1', 'localhost']) assert.equal(isEncrypted({ host, insecure: false }), false);
  assert.equal(isEncrypted({ host: '127.0.0.1', insecure: true, tlsCert: 'own.pem' }), true);
  // What is advertised may lead here from elsewhere.
  for (const host of ['0.0.0.0', '::']) assert.equal(isEncrypted({ host, insecure: false }), true);
  assert.equal(isEncrypted({ host: '127.0.0.1', advertise: '192.168.1.20:7700', insecure: false }), true);
  assert.equal(isEncrypted({ host: '127.0.0.1', advertise: 'localhost:7700', insecure: false }), false);
});

test('the authority is made once, in a file of mode 0600; open to others or damaged, it is refused', async () => {
  const state = join(folder, 'authority');
  const first = await loadAuthority(state);
  assert.equal((await stat(authorityPath(state))).mode & 0o777, 0o600);
  assert.equal((await loadAuthority(state)).certificate, first.certificate);
  await chmod(authorityPath(state), 0o644);
  await assert.rejects(loadAuthority(state), isInput(/can be read by others: run "chmod 600 /));
  await chmod(authorityPath(state), 0o600);
  await writeFile(authorityPath(state), 'x');
  await assert.rejects(loadAuthority(state), isInput(/is damaged: delete it to begin a new cluster/));
});

test('a device enrols with the code, joins with its certificate, and joins again without a code', async () => {
  const served = await serve();
  assert.match(served.door.joinCode, /^([0-9A-Z]{4}-){9}[0-9A-Z]{4}$/);
  const store = createDeviceStore(join(folder, 'device'));
  const first = await enrolAt(served, { store });
  assert.equal(await joined(served, first.tls), 'board');
  const { validFrom, validTo, subjectAltName } = new X509Certificate(first.identity.certificate);
  assert.equal(subjectAltName, 'URI:asteroid:worker:board');
  assert.equal((Date.parse(validTo) - Date.parse(validFrom)) / 86_400_000, 31);
  await served.door.revoke();
  await served.server.close('over');

  // Another run of the same cluster: another certificate of the coordinator, another code; this device needs neither.
  const later = await serve();
  const again = await enrol({
    url: later.server.url,
    name: 'board',
    store,
    joinCode: () => Promise.reject(new Error('asked for a code')),
  });
  assert.equal(again.identity.certificate, first.identity.certificate);
  assert.equal(await joined(later, again.tls), 'board');
  // A month later it does.
  const expired = createDeviceStore(join(folder, 'device'), () => Date.now() + 31 * 86_400_000);
  assert.equal(await expired.read(keyHash((await loadAuthority(stateA)).certificate).toString('hex')), undefined);
  await later.server.close('over');
});

test('two devices that want one name get two; a name belongs to the key that has it', async () => {
  const served = await serve();
  const [first, second] = [await enrolAt(served), await enrolAt(served)];
  assert.deepEqual([first.name, second.name], ['board', 'board-2']);
  // What a caller calls itself does not count: its certificate does.
  assert.equal(await joined(served, second.tls, 'board'), 'board-2');
  const authority = await loadAuthority(stateA);
  const { key, request } = await createRequest();
  const impostor = { key, cert: await authority.issue({ role: 'worker', name: 'board' }, request) };
  await assert.rejects(
    joined(served, { ...first.tls, ...impostor }),
    isInput(/^another device is called board in this run/),
  );
  await served.server.close('over');
});

test('wrong, cut, expired, revoked and foreign codes are refused; the secret goes to nobody else', async () => {
  const served = await serve();
  const other = await serve({}, join(folder, 'other'));
  const { joinCode } = served.door;
  const wrong = joinCode.slice(0, -19) + secretOf(other.door.joinCode);
  await assert.rejects(
    enrolAt(served, { code: wrong }),
    isInput(/^the join code is wrong: use the one that asteroid train printed$/),
  );
  await assert.rejects(enrolAt(served, { code: joinCode.slice(0, -1) }), isInput(/^the join code is not complete/));
  await assert.rejects(
    enrolAt(served, { code: secretOf(joinCode) }),
    isInput(/^this join code is one for unencrypted links/),
  );
  // The other server answers at the address: its key is not the code's, so it hears nothing.
  await assert.rejects(enrolAt(other, { code: joinCode }), isInput(/does not have the key that the join code names/));
  assert.deepEqual(other.refusals, []);
  nowMs = 3_600_001;
  await assert.rejects(enrolAt(served), isInput(/^the join code has expired: start a new run and use its code$/));
  nowMs = 0;
  await served.door.revoke();
  await assert.rejects(enrolAt(served), isInput(/^the join code is wrong/));
  assert.equal(served.links.length, 0);
  for (const text of served.refusals) assert.doesNotMatch(text, new RegExp(secretOf(joinCode)));
  for (const { server } of [served, other]) await server.close('over');
});

test('the lasting code opens every run of its cluster until it is revoked, and no other cluster', async () => {
  const code = await fleetCode(stateA);
  assert.equal(await fleetCode(stateA), code);
  assert.equal((await stat(fleetCodePath(stateA))).mode & 0o777, 0o600);
  const [first, later, other] = [await serve(), await serve(), await serve({}, join(folder, 'other'))];
  nowMs = 30 * 86_400_000;
  for (const served of [first, later]) {
    await served.door.revoke();
    const { name, tls } = await enrolAt(served, { code, name: 'pod' });
    assert.equal(await joined(served, tls), name);
  }
  nowMs = 0;
  const wrong = `${code.slice(0, -1)}${code.endsWith('0') ? '1' : '0'}`;
  await assert.rejects(enrolAt(first, { code: wrong }), isInput(/^the join code is wrong/));
  await assert.rejects(enrolAt(other, { code }), isInput(/does not have the key that the join code names/));
  await removeFleetCode(stateA);
  await assert.rejects(enrolAt(later, { code }), isInput(/^the join code is wrong/));
  assert.notEqual(await fleetCode(stateA), code);
  for (const { server } of [first, later, other]) await server.close('over');
});

test('nobody joins without a certificate, or with one of another authority or role, or an expired one', async () => {
  const served = await serve();
  const good = await enrolAt(served);
  const { ca, allowPartialTrustChain, checkServerIdentity } = good.tls;
  const known = {
    ...(ca && { ca }),
    ...(allowPartialTrustChain && { allowPartialTrustChain }),
    ...(checkServerIdentity && { checkServerIdentity }),
  };
  await assert.rejects(joined(served, known), isInput(/^a device joins with a certificate: give it the join code$/));
  // The code alone joins nobody, and a certificate needs the code.
  await assert.rejects(
    connect(served.server.url, { hello: helloOf('worker', 'board', secretOf(served.door.joinCode)), tls: known }),
    isInput(/^a device joins with a certificate/),
  );
  await assert.rejects(
    connect(served.server.url, { hello: helloOf('peer'), tls: good.tls }),
    isInput(/^only workers join here$/),
  );
  const { key, cert } = createSelfSigned();
  await assert.rejects(
    joined(served, { ...known, key, cert }),
    isInput(/the certificate of this device is not of this cluster$/),
  );
  const authority = await loadAuthority(stateA);
  const coordinator = await createIdentity(authority, { role: 'coordinator', name: coordinatorName });
  await assert.rejects(
    joined(served, { ...known, key: coordinator.key, cert: coordinator.certificate }),
    isInput(/^a device joins with a certificate/),
  );
  const [ownKey = '', certificate = ''] = (await readFile(authorityPath(stateA), 'utf8')).split(/(?=-----BEGIN CERT)/);
  const past = await openAuthority({ key: ownKey, certificate }, () => Date.now() - 31 * 86_400_000);
  const old = await createIdentity(past, { role: 'worker', name: 'board' });
  await assert.rejects(
    joined(served, { ...known, key: old.key, cert: old.certificate }),
    isInput(/not of this cluster$/),
  );
  assert.equal(served.links.length, 0);
  assert.equal(await joined(served, good.tls), 'board');
  await served.server.close('over');
});

test('a worker of the cluster does not pass for its coordinator', async () => {
  const served = await serve();
  const { identity, tls } = await enrolAt(served);
  const impostor = await listen({
    host: '127.0.0.1',
    port: 0,
    name: coordinatorName,
    tls: { key: identity.key, cert: identity.certificate + identity.authority },
    authenticate: () => assert.fail('the caller said hello'),
    onLink: () => {},
  });
  await assert.rejects(
    connect(impostor.url, { hello: helloOf('worker'), tls }),
    isRun(/is not the coordinator coordinator: its certificate is another's$/),
  );
  await impostor.close('over');
  await served.server.close('over');
});

test('older TLS, plain WebSockets, browsers and other host names are refused', async () => {
  const served = await serve();
  const { port, url } = served.server;
  const old = connectTls({ host: '127.0.0.1', port, maxVersion: 'TLSv1.2', rejectUnauthorized: false });
  await assert.rejects(once(old, 'secureConnect'), /ALERT|alert|version/);
  await assert.rejects(connect(url.replace('wss:', 'ws:'), { hello: helloOf('worker') }), isRun(/cannot be reached/));
  const answer = (headers: string): Promise<string> => {
    const socket = connectTls({ host: '127.0.0.1', port, rejectUnauthorized: false });
    const upgrade =
      'Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n' +
      'Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==';
    socket.write(`GET / HTTP/1.1\r\n${upgrade}\r\n${headers}\r\n\r\n`);
    return once(socket, 'data').then(([data]: unknown[]) => {
      socket.destroy();
      return String(data).split('\r\n')[0] ?? '';
    });
  };
  assert.equal(await answer('Host: evil.example'), 'HTTP/1.1 403 Forbidden');
  assert.equal(await answer('Host: 127.0.0.1\r\nOrigin: https://127.0.0.1'), 'HTTP/1.1 403 Forbidden');
  assert.equal(await answer('Host: 127.0.0.1'), 'HTTP/1.1 101 Switching Protocols');
  assert.equal(served.links.length, 0);
  await served.server.close('over');
});

test('own certificates: the code names their key; files that do not fit are one sentence', async () => {
  const { key, cert } = createSelfSigned();
  const [tlsCert, tlsKey] = [join(folder, 'own.pem'), join(folder, 'own-key.pem')];
  await writeFile(tlsCert, cert);
  await writeFile(tlsKey, key);
  const served = await serve({ tlsCert, tlsKey });
  const admission = await enrolAt(served);
  assert.equal(await joined(served, admission.tls), 'board');
  await served.server.close('over');
  await assert.rejects(serve({ tlsCert, tlsKey: tlsCert }), isInput(/is not PEM that can be read/));
  await assert.rejects(
    serve({ tlsCert, tlsKey: join(folder, 'none') }),
    isInput(/^--tls-key .*none cannot be read \(ENOENT\): name a PEM file\.$/),
  );
  await writeFile(tlsKey, createSelfSigned().key);
  await assert.rejects(serve({ tlsCert, tlsKey }), isInput(/does not belong to its key/));
});

test('workers link to each other with certificates, each to the one that the plan names', async () => {
  const served = await serve();
  const [a, b, c] = [
    await enrolAt(served, { name: 'a' }),
    await enrolAt(served, { name: 'b' }),
    await enrolAt(served, { name: 'c' }),
  ];
  const token = 'the-token-of-this-run';
  const arrived: string[] = [];
  const network = (who: Admission) =>
    createPeerNetwork({
      name: who.name,
      host: '127.0.0.1',
      token,
      onLink: (link) => arrived.push(link.peer),
      identity: who.identity,
    });
  const [atA, atB] = [await network(a), await network(b)];
  assert.match(atA.url, /^wss:/);
  const link = await atB.connect({ name: 'a', url: atA.url });
  assert.equal(link.peer, 'a');
  assert.deepEqual(arrived, ['b']);
  // At the address of a, the plan's device is c: nobody else is talked to.
  await assert.rejects(
    atB.connect({ name: 'c', url: atA.url }),
    isRun(/is not the worker c: its certificate is another's$/),
  );
  // c knows the token, and calls itself b.
  const asB = connect(atA.url, {
    hello: helloOf('peer', 'b', token),
    tls: peerTls(c.identity, { role: 'worker', name: 'a' }),
  });
  await assert.rejects(asB, isInput(/^this worker only talks to the other workers of its run$/));
  const stranger = createSelfSigned();
  await assert.rejects(
    connect(atA.url, {
      hello: helloOf('peer', 'b', token),
      tls: { ...peerTls(b.identity, { role: 'worker', name: 'a' }), ...stranger },
    }),
    isRun(/certificate|cannot be reached|ended the connection/),
  );
  assert.deepEqual(arrived, ['b']);
  for (const one of [atA, atB]) await one.close();
  await served.server.close('over');
});

test('1,000 idle sockets and 300 broken handshakes take less than 20 MB, and a device still joins', async () => {
  const state = join(folder, 'flooded');
  const server = spawn(process.execPath, [
    '--expose-gc',
    fileURLToPath(new URL('../../../testing/door-process.js', import.meta.url)),
    state,
  ]);
  server.stderr.pipe(process.stderr);
  const lines = createInterface({ input: server.stdout })[Symbol.asyncIterator]();
  const read = async (): Promise<Record<string, unknown>> =>
    JSON.parse((await lines.next()).value ?? '{}') as Record<string, unknown>;
  const { url, port, joinCode } = (await read()) as { url: string; port: number; joinCode: string };
  const rssBytes = async (): Promise<number> => {
    server.stdin.write('\n');
    return Number((await read())['rssBytes']);
  };
  const { tls } = await enrol({ url, name: 'board', joinCode: () => Promise.resolve(joinCode) });
  const joinAgain = async (): Promise<void> => {
    const { link } = await connect(url, { hello: helloOf('worker'), tls });
    await link.close('seen');
  };
  const open = async (text: string): Promise<Socket> => {
    const socket = connectSocket(port, '127.0.0.1');
    socket.on('error', () => {});
    await once(socket, 'connect');
    if (text !== '') socket.write(text, 'latin1');
    return socket;
  };
  let mostBytes = 0;
  const flood = async (count: number, text: string): Promise<void> => {
    const sockets: Socket[] = [];
    for (let index = 0; index < count; index++) sockets.push(await open(text));
    await joinAgain();
    mostBytes = Math.max(mostBytes, await rssBytes());
    for (const socket of sockets) socket.destroy();
  };
  // What TLS and the garbage collector take for the first few dozen connections of anybody, they keep.
  for (let turn = 0; turn < 50; turn++) await joinAgain();
  const before = await rssBytes();
  for (let turn = 0; turn < 2; turn++) {
    await flood(1000, '');
    await flood(300, `\x16\x03\x01\xff\xff${'x'.repeat(2000)}`);
  }
  server.stdin.end();
  await once(server, 'exit');
  assert.ok(
    mostBytes - before < 20e6,
    `${((mostBytes - before) / 1e6).toFixed(1)} MB more than ${(before / 1e6).toFixed(0)}`,
  );
});

test('a certificate in its last third is renewed without a code; if that fails, the old one remains', async () => {
  const served = await serve();
  const day = 86_400_000;
  let nowMs = Date.now();
  const store = createDeviceStore(join(folder, 'renewing'), () => nowMs);
  const first = await enrolAt(served, { store });
  nowMs += 19 * day;
  assert.equal((await enrolAt(served, { store, code: '' })).identity.certificate, first.identity.certificate);
  nowMs += 2 * day;
  const second = await enrolAt(served, { store, code: '' });
  assert.notEqual(second.identity.certificate, first.identity.certificate);
  assert.notEqual(second.identity.key, first.identity.key);
  assert.equal(second.name, 'board');
  assert.equal(await joined(served, second.tls), 'board');
  // The name has gone to the new key; and who has no certificate renews nothing.
  await assert.rejects(joined(served, first.tls), isInput(/^another device is called board in this run/));
  const { cert: _, key: __, ...known } = second.tls;
  const { request } = await createRequest();
  await assert.rejects(
    connect(served.server.url, { hello: { ...helloOf('enrol'), facts: { request } }, tls: known }),
    isInput(/^the join code is wrong/),
  );
  await served.server.close('over');

  const other = await serve();
  const stubborn = await listen({
    host: '127.0.0.1',
    port: 0,
    name: coordinatorName,
    ...(other.door.tls && { tls: other.door.tls }),
    authenticate: () => ({ kind: 'refused', reason: 'this release renews nothing', retry: false }),
    onLink: () => {},
  });
  nowMs = Date.now() + 21 * day;
  const kept = await enrol({
    url: stubborn.url,
    name: 'board',
    store,
    joinCode: () => assert.fail('asked for a code'),
  });
  assert.equal(
    kept.identity.certificate,
    (await store.read(keyHash((await loadAuthority(stateA)).certificate).toString('hex')))?.certificate,
  );
  for (const server of [stubborn, other.server]) await server.close('over');
});

test('codes and devices are listed, and revoked during a run', async () => {
  const state = join(folder, 'registry');
  const served = await serve({}, state);
  const registry = createRegistry(state);
  const { joinCode } = served.door;
  const [good, bad] = [await enrolAt(served, { name: 'good' }), await enrolAt(served, { name: 'bad' })];
  const devices = await registry.devices();
  assert.deepEqual(devices.map(({ name }) => name).sort(), ['bad', 'good']);
  const days = ((devices[0]?.expiresAtMs ?? 0) - Date.now()) / 86_400_000;
  assert.ok(days > 29 && days <= 30, `${days} days`);
  const [code, ...more] = await registry.codes();
  assert.equal(more.length, 0);
  assert.equal((code?.expiresAtMs ?? 0) - (code?.madeAtMs ?? 0), 3_600_000);
  // Nothing on disk gives the code away.
  for (const name of await readdir(join(state, 'codes')))
    assert.doesNotMatch(await readFile(join(state, 'codes', name), 'utf8'), new RegExp(secretOf(joinCode)));

  await registry.revokeDevice(devices.find(({ name }) => name === 'bad')?.key ?? '');
  assert.deepEqual(
    (await registry.devices()).map(({ name }) => name),
    ['good'],
  );
  await assert.rejects(joined(served, bad.tls), isInput(/^this device was put out of the cluster by its owner$/));
  const { request } = await createRequest();
  await assert.rejects(
    connect(served.server.url, { hello: { ...helloOf('enrol'), facts: { request } }, tls: bad.tls }),
    isInput(/^this device was put out of the cluster by its owner$/),
  );
  assert.equal(await joined(served, good.tls, 'good'), 'good');

  await registry.revokeCode(code?.id ?? '');
  await assert.rejects(enrolAt(served, { name: 'late' }), isInput(/^the join code is wrong/));
  assert.equal(await joined(served, good.tls, 'good'), 'good');
  await served.server.close('over');

  const next = await serve({}, state);
  assert.equal((await registry.codes()).length, 1);
  await assert.rejects(joined(next, bad.tls), isInput(/put out of the cluster/));
  await next.door.revoke();
  assert.deepEqual(await registry.codes(), []);
  await next.server.close('over');
});
