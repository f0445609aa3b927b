// Links between devices: measured as the network is, made again when they are lost, and a run that survives damaged
// messages or ends with one sentence.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { processMiB } from '../../cluster/memory.ts';
import { RunError } from '../../errors.ts';
import { createRandom } from '../../random.ts';
import { expectNothingLost, hybridRun, measuredRun } from '../../testing/losing-run.ts';
import { cut, startCluster } from '../../testing/memory-cluster.ts';
import { createVirtualClock } from '../../testing/virtual-clock.ts';

const timeout = 60_000;

for (const [name, peer] of [
  ['a', 'b'],
  ['a', 'c'],
  ['b', 'c'],
] as const) {
  test(`the link between ${name} and ${peer} is lost while training: both stay, and the link is made again`, {
    timeout,
  }, async () => {
    const clock = createVirtualClock();
    let isCut = false;
    const cluster = await startCluster({
      ...hybridRun(),
      clock,
      links: { clock },
      observe: (event, running) => {
        if (event.kind !== 'trace' || event.round !== 1 || isCut) return;
        isCut = true;
        cut(...(running.peerLink(name, peer) ?? []));
      },
    });
    await expectNothingLost(cluster, clock.runUntil(cluster.outcome()));
    assert.deepEqual(
      cluster.events.filter((event) => event.kind === 'left'),
      [],
    );
    const causes = cluster.events.flatMap((event) => (event.kind === 'recovering' ? [event.cause] : []));
    // a and b exchange nothing but sums, at the end of the round.
    assert.match(
      causes.join(),
      new RegExp(`the link between [${name}${peer}] and [${name}${peer}] broke \\(the connection was lost\\)`),
    );
  });
}

for (const phase of ['measuring', 'profiling', 'deploying'] as const) {
  test(`a link between two devices that is lost while ${phase} is made again when it is needed`, {
    timeout,
  }, async () => {
    const clock = createVirtualClock();
    const cluster = await startCluster({
      ...measuredRun(),
      clock,
      links: { clock, bandwidthMbps: 100, latencyMs: 2 },
      observe: (event, running) => {
        if (event.kind !== 'phase' || event.phase !== phase) return;
        // While measuring, in the middle of the first of a's links.
        clock.after(5, () => cut(...(running.peerLink('a', phase === 'measuring' ? 'b' : 'c') ?? [])));
      },
    });
    await expectNothingLost(cluster, clock.runUntil(cluster.outcome()));
  });
}

test('a slow engine is warned of once for each machine, and its process takes more memory', { timeout }, async () => {
  const clock = createVirtualClock();
  const machines: Readonly<Record<string, string>> = { a: 'desk', b: 'desk', c: 'board' };
  const cluster = await startCluster({
    ...measuredRun(),
    ...{ clock, links: { clock } },
    factsOf: (device) => ({
      ...{ machine: machines[device] ?? device, engineWarning: 'SLOW: so it is.' },
      engine: device === 'c' ? 'onnxruntime-web 1.30.0 wasm (1 thread)' : 'onnxruntime-node 1.30.0 cpu (1 thread)',
    }),
  });
  await clock.runUntil(cluster.outcome());
  const said = cluster.events.flatMap((event) => (event.kind === 'warning' ? [event.message] : []));
  assert.deepEqual(said.slice(0, 2), ['a: SLOW: so it is.', 'c: SLOW: so it is.']);
  assert.equal(new Set(said).size, said.length);
  const memories = cluster.events.flatMap((event) => (event.kind === 'cluster' ? [event.cluster.devices] : []))[0];
  // a and b share 4096 MiB; a process takes 160 MiB, with WebAssembly 490.
  assert.deepEqual(
    memories?.filter(({ name }) => name in machines),
    [
      { name: 'a', memoryMiB: 1888 },
      { name: 'b', memoryMiB: 1888 },
      { name: 'c', memoryMiB: 3606 },
    ],
  );
});

test('measured links are what the network is', { timeout }, async () => {
  const clock = createVirtualClock();
  const cluster = await startCluster({ ...measuredRun(), clock, links: { clock, bandwidthMbps: 80, latencyMs: 3 } });
  await clock.runUntil(cluster.outcome());
  const found = cluster.events.find((event) => event.kind === 'cluster');
  assert.ok(found !== undefined);
  const { devices, links } = found.cluster;
  // Four of them share this machine's memory.
  assert.deepEqual(
    devices,
    ['a', 'b', 'c'].map((name) => ({ name, memoryMiB: 1365 - processMiB })),
  );
  assert.deepEqual(
    links.pairs?.map(({ between }) => between.join()),
    ['a,b', 'a,c', 'b,c'],
  );
  for (const { bandwidthMbps, latencyMs = 0 } of links.pairs ?? []) {
    assert.ok(Math.abs(bandwidthMbps - 80) < 4, `${bandwidthMbps} Mbps`);
    assert.ok(Math.abs(latencyMs - 3) < 0.2, `${latencyMs} ms`);
  }
});

test('on a network that damages messages a run ends well or with one sentence, 20 times', {
  timeout: 60_000,
}, async () => {
  let failureCount = 0;
  for (let seed = 0; seed < 20; seed++) {
    const random = createRandom(seed, 0xbad);
    const clock = createVirtualClock();
    const cluster = await startCluster({
      ...hybridRun(),
      clock,
      links: {
        clock,
        tamper: (message) => {
          if (random.integer(150) > 0) return [message];
          const kind = random.integer(3);
          if (kind === 0) return [message, Uint8Array.from(message)]; // doubled
          if (kind === 1) return [message.subarray(0, random.integer(message.length))]; // cut
          const at = random.integer(message.length);
          message[at] = (message[at] as number) ^ (1 << random.integer(8));
          return [message];
        },
      },
    });
    try {
      const { losses } = await clock.runUntil(cluster.outcome());
      assert.equal(losses.length, 4);
    } catch (error) {
      assert.ok(error instanceof RunError, `seed ${seed}: ${error instanceof Error ? error.stack : String(error)}`);
      assert.match(
        error.message,
        /^Training ended: ([abc] (left|cannot go on)|the link)/,
        `seed ${seed}: ${error.message}`,
      );
      failureCount++;
    }
  }
  assert.ok(failureCount < 10, String(failureCount));
});
