// @ts-nocheck
// What moving tensors costs the processor: core-milliseconds (all threads, user and system) per MB at each end, of bare TCP and TLS sockets (the floor),
// of our links with the hand-over to the compute thread, and of a ring AllReduce. One process an end; started by bench/transport.ts --section cpu.

import { fork } from 'node:child_process';
import net from 'node:net';
import tls from 'node:tls';
import { fileURLToPath } from 'node:url';

const mb = 1e6;
const sizes = [
  ['64 KiB', 65_536],
  ['1 MiB', 2 ** 20],
  ['4 MiB', 2 ** 22],
];
const carriers = ['tcp', 'tls', 'link', 'link-tls'];
const names = { tcp: 'bare TCP', tls: 'bare TLS', link: 'our link, plain', 'link-tls': 'our link, TLS' };

/** Waits for the next message of a child that has this key. */
function next(child, key) {
  return new Promise((done, fail) => {
    const onMessage = (message) => {
      if (!(key in message)) return;
      child.off('message', onMessage);
      child.off('exit', onExit);
      done(message[key]);
    };
    const onExit = (code) => fail(new Error(`an end exited with ${code} before it said "${key}"`));
    child.on('message', onMessage);
    child.on('exit', onExit);
  });
}

/** In the environment of a worker, whose allocator keeps pages. */
async function startEnd(role, settings) {
  const { allocatorEnvironment } = await import(`${settings.dist}/engine/node/host-node.js`);
  const child = fork(fileURLToPath(import.meta.url), [], {
    serialization: 'advanced',
    env: { ...process.env, ...allocatorEnvironment() },
  });
  child.send({ role, ...settings });
  const address = await next(child, 'ready');
  return { child, address };
}

async function ask(end, request, key) {
  const answer = next(end.child, key);
  end.child.send(request);
  return answer;
}

/** One row: `totalMb` one way and then both ways, after a tenth of it as warm-up. Returns core-ms a MB: sender, receiver, and an end both ways. */
async function measurePair(ends, byteCount, totalMb) {
  const count = Math.ceil((totalMb * mb) / byteCount);
  const movedMb = (count * byteCount) / mb;
  const go = async (senders, frames) => {
    const before = await Promise.all(ends.map((end) => ask(end, { cpu: true }, 'cpu')));
    const received = ends.map((end, index) => (senders.includes(1 - index) ? next(end.child, 'received') : undefined));
    for (const [index, end] of ends.entries())
      end.child.send({ expect: senders.includes(1 - index) ? frames : 0, byteCount });
    for (const index of senders) ends[index].child.send({ load: frames, byteCount });
    await Promise.all(received);
    const after = await Promise.all(ends.map((end) => ask(end, { cpu: true }, 'cpu')));
    return after.map((cpuUs, index) => (cpuUs - before[index]) / 1e3);
  };
  await go([0, 1], Math.ceil(count / 4));
  const [sender, receiver] = await go([0], count);
  const both = await go([0, 1], count);
  return { sender: sender / movedMb, receiver: receiver / movedMb, both: (both[0] + both[1]) / 4 / movedMb };
}

async function measureRing(memberCount, settings, roundCount) {
  const ends = [];
  for (let index = 0; index < memberCount; index++)
    ends.push(await startEnd('ring', { ...settings, index, memberCount }));
  const urls = ends.map(({ address }) => address);
  await Promise.all(ends.map((end) => ask(end, { urls }, 'linked')));
  await Promise.all(ends.map((end) => ask(end, { sums: 15 }, 'summed')));
  const before = await Promise.all(ends.map((end) => ask(end, { cpu: true }, 'cpu')));
  await Promise.all(ends.map((end) => ask(end, { sums: roundCount }, 'summed')));
  const after = await Promise.all(ends.map((end) => ask(end, { cpu: true }, 'cpu')));
  for (const { child } of ends) child.disconnect();
  const totalMs = after.reduce((sum, cpuUs, index) => sum + cpuUs - before[index], 0) / 1e3;
  // Each member sends, and receives, 2(n−1)/n of the vector (Asteroid, eq. 5).
  const movedMb = (((2 * (memberCount - 1)) / memberCount) * settings.elementCount * 4 * roundCount * 2) / mb;
  return { perMb: totalMs / memberCount / movedMb, perRoundMs: totalMs / memberCount / roundCount };
}

/** Prints the tables. `dist`: the built code; `only`: carriers or 'ring', separated by commas. */
export async function cpu(dist, { only, totalMb = 300 } = {}) {
  const { createAuthorityMaterial, createIdentity, openAuthority } = await import(`${dist}/transport/node/tls/authority.js`);
  const authority = await openAuthority(await createAuthorityMaterial(Date.now()), Date.now);
  const identities = [];
  for (let index = 0; index < 5; index++)
    identities.push(await createIdentity(authority, { role: 'worker', name: `end-${index}` }));
  const wanted = only?.split(',') ?? [...carriers, 'ring'];
  console.log(
    '| carrier | tensors of | sender | receiver | both ways at once, an end |\n| --- | --- | --- | --- | --- |',
  );
  for (const carrier of carriers.filter((name) => wanted.includes(name))) {
    const server = await startEnd('serve', { dist, carrier, identity: identities[0] });
    const caller = await startEnd('call', { dist, carrier, identity: identities[1], address: server.address });
    for (const [name, byteCount] of sizes) {
      const { sender, receiver, both } = await measurePair([caller, server], byteCount, totalMb);
      console.log(
        `| ${names[carrier]} | ${name} | ${sender.toFixed(2)} | ${receiver.toFixed(2)} | ${both.toFixed(2)} |`,
      );
    }
    for (const { child } of [server, caller]) child.disconnect();
  }
  if (!wanted.includes('ring')) return;
  console.log(
    '\n| AllReduce of 9 MB | core-ms a MB sent or received | core-ms a member and sum |\n| --- | --- | --- |',
  );
  for (const carrier of ['link', 'link-tls'])
    for (const memberCount of [2, 5]) {
      const { perMb, perRoundMs } = await measureRing(
        memberCount,
        { dist, carrier, identities, elementCount: 2_250_000 },
        30,
      );
      console.log(
        `| ${memberCount} members, ${carrier === 'link' ? 'plain' : 'TLS'} | ${perMb.toFixed(2)} | ${perRoundMs.toFixed(1)} |`,
      );
    }
}

// ---- An end -------------------------------------------------------------------------------------------------------------------------------------

function cpuUs() {
  const { user, system } = process.cpuUsage();
  return user + system;
}

/** Counts what comes and says so when all of it is there. */
function createSink() {
  let [left, got] = [0, 0];
  const check = () => {
    if (left > 0 && got >= left) {
      got -= left;
      left = 0;
      process.send({ received: true });
    }
  };
  return {
    expect: (byteCount) => {
      left = byteCount;
      check();
    },
    take: (byteCount) => {
      got += byteCount;
      check();
    },
  };
}

function bareSender(socket) {
  return async (count, byteCount) => {
    const data = Buffer.alloc(byteCount, 1);
    for (let index = 0; index < count; index++) {
      if (!socket.write(data)) await new Promise((done) => socket.once('drain', done));
    }
  };
}

function linkSender(link) {
  return async (count, byteCount) => {
    const tensors = [{ type: 'uint8', shape: [byteCount], data: new Uint8Array(byteCount).fill(1) }];
    let left = count;
    await Promise.all(
      [1, 2, 3, 4].map(async () => {
        while (left-- > 0) await link.send({ kind: 'load', epoch: 1, round: 0, microBatch: 0, tensors });
      }),
    );
  };
}

const hello = (name) => ({ protocol: 1, purpose: 'peer', name, credential: '' });
const tlsOf = ({ key, certificate, authority }) => ({ key, cert: certificate, ca: authority });

function listenLink({ listen }, carrier, identity, onLink) {
  return listen({
    host: '127.0.0.1',
    port: 0,
    name: 'server',
    authenticate: ({ name }) => ({ kind: 'accepted', name }),
    onLink,
    ...(carrier === 'link-tls' && { tls: tlsOf(identity) }),
  });
}

async function callLink({ connect }, carrier, identity, url, name = 'caller') {
  const options = {
    hello: hello(name),
    ...(carrier === 'link-tls' && { tls: { ...tlsOf(identity), checkServerIdentity: () => undefined } }),
  };
  return (await connect(url, options)).link;
}

/** A pair's end: resolves with what sends so many tensors. `sink` takes what comes. */
async function openPair({ role, dist, carrier, identity, address }, sink) {
  const own = { ...tlsOf(identity), minVersion: 'TLSv1.3', checkServerIdentity: () => undefined };
  const attend = (socket) => {
    socket.setNoDelay(true);
    socket.on('data', (chunk) => sink.take(chunk.length));
    return bareSender(socket);
  };
  if (carrier === 'tcp' || carrier === 'tls') {
    if (role === 'serve') {
      return new Promise((done) => {
        const server =
          carrier === 'tcp'
            ? net.createServer((socket) => done(attend(socket)))
            : tls.createServer(own, (socket) => done(attend(socket)));
        server.listen(0, '127.0.0.1', () => process.send({ ready: server.address().port }));
      });
    }
    const socket =
      carrier === 'tcp' ? net.connect(address, '127.0.0.1') : tls.connect({ port: address, host: '127.0.0.1', ...own });
    await new Promise((done) => socket.once(carrier === 'tcp' ? 'connect' : 'secureConnect', done));
    process.send({ ready: true });
    return attend(socket);
  }
  const transport = await import(`${dist}/transport/node/websocket.js`);
  const { createComputeThread } = await import(`${dist}/engine/node/compute-thread.js`);
  const engine = await createComputeThread({ engine: 'reference' });
  const receive = (link) => {
    link.receive(({ tensors }) => {
      for (const tensor of tensors) {
        sink.take(tensor.data.byteLength);
        engine.release(engine.upload(tensor));
      }
    });
    return linkSender(link);
  };
  if (role === 'serve') {
    return new Promise((done) => {
      void listenLink(transport, carrier, identity, (link) => done(receive(link))).then(({ url }) =>
        process.send({ ready: url }),
      );
    });
  }
  const link = await callLink(transport, carrier, identity, address);
  process.send({ ready: true });
  return receive(link);
}

async function pairEnd(settings) {
  const sink = createSink();
  let send;
  process.on('message', (message) => {
    if (message.cpu) process.send({ cpu: cpuUs() });
    if ('expect' in message) sink.expect(message.expect * message.byteCount);
    if (message.load) void send(message.load, message.byteCount);
  });
  send = await openPair(settings, sink);
}

/** A member of a ring: it calls the next one and is called by the one before. */
async function ringEnd({ dist, carrier, identities, index, memberCount, elementCount }) {
  const transport = await import(`${dist}/transport/node/websocket.js`);
  const { ringAllReduce } = await import(`${dist}/runtime/device/all-reduce.js`);
  const { pieceCodec } = await import(`${dist}/runtime/device/codec.js`);
  const { Mailbox } = await import(`${dist}/runtime/device/mailbox.js`);
  const pieces = new Mailbox(2 ** 30);
  const from = 'before';
  const server = await listenLink(transport, carrier, identities[index], (link) =>
    link.receive((frame) =>
      pieces.put({ kind: 'all-reduce', round: frame.round, microBatch: frame.microBatch, from }, frame),
    ),
  );
  let [nextLink, round] = [undefined, 0];
  const values = new Float32Array(elementCount);
  const sums = async (count) => {
    for (const end = round + count; round < end; round++) {
      values.fill(index + 1);
      const current = round;
      await ringAllReduce(
        values,
        { memberCount, memberIndex: index, codec: pieceCodec(undefined, () => values) },
        {
          send: (microBatch, tensors) =>
            nextLink.send({ kind: 'all-reduce', epoch: 1, round: current, microBatch, tensors }),
          receive: (microBatch) => pieces.take({ kind: 'all-reduce', round: current, microBatch, from }),
        },
      );
      const expected = (memberCount * (memberCount + 1)) / 2;
      if (values[0] !== expected || values[elementCount - 1] !== expected)
        throw new Error(`the sum is ${values[0]}, not ${expected}`);
    }
    process.send({ summed: true });
  };
  process.on('message', (message) => {
    if (message.cpu) process.send({ cpu: cpuUs() });
    if (message.sums) void sums(message.sums);
    if (message.urls) {
      void callLink(
        transport,
        carrier,
        identities[index],
        message.urls[(index + 1) % memberCount],
        `end-${index}`,
      ).then((link) => {
        link.receive(() => {});
        nextLink = link;
        process.send({ linked: true });
      });
    }
  });
  process.send({ ready: server.url });
}

if (process.send !== undefined && process.argv[1] === fileURLToPath(import.meta.url)) {
  process.once('message', async (settings) => {
    (await import(`${settings.dist}/engine/node/host-node.js`)).searchForGarbageLess();
    await (settings.role === 'ring' ? ringEnd(settings) : pairEnd(settings));
  });
  process.on('disconnect', () => process.exit());
}
