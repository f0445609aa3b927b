// A device that does not keep to the protocol costs itself its connection; the others go on without it. Never the
// process, never a silence.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../../assert.ts';
import type { Plan } from '../../cluster/cluster.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import { InputError, ProtocolError, RunError } from '../../errors.ts';
import { type Tensor, tensor } from '../../graph/tensor.ts';
import { createRandom } from '../../random.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { type MemoryCluster, type MemoryRun, startCluster } from '../../testing/memory-cluster.ts';
import { batches, regressionNet, subjectOf } from '../../testing/training-subjects.ts';
import { mutateJson } from '../../testing/wrong-messages.ts';
import type { Frame } from '../../transport/link.ts';
import type { Phase } from '../protocol/events.ts';
import type { ToCoordinator } from '../protocol/messages.ts';

const timeout = 30_000;
const net = regressionNet();
const subject = subjectOf(net, 8);
const layerCount = subject.sequence.layers.length;
const plan = {
  ...handPlan({ schedule: '1f1b', cuts: [2], shares: [[3, 1], [4]], microBatchCount: 2 }, layerCount),
  predicted: { roundMs: 1, samplesPerS: 1, peakMemoryMiB: {} },
};

/** The plan, or, for fewer devices, one that the first computes alone. */
function planFor(devices: readonly string[]): Plan {
  const alone = {
    ...plan,
    stages: [{ layers: [0, layerCount] as const, devices: devices.slice(0, 1), samples: [4], inFlight: 1 }],
  };
  return devices.length === 3 ? plan : alone;
}

/** Everything is measured first. */
const measured: MemoryRun = {
  subject,
  batch: batches(net, subject),
  workerNames: ['a', 'b', 'c'],
  choosePlan: (_profile, { devices }) => planFor(devices.map(({ name }) => name)),
  links: { bandwidthMbps: 10_000 },
  machine: { endRound: 4, checkpointEvery: 2, batchSizesToProfile: [1] },
};
/** The same without measuring. */
const planned: MemoryRun = { subject, batch: measured.batch, plan, machine: measured.machine ?? {} };

function frame(kind: string, control?: unknown, tensors?: readonly Tensor[]): Frame {
  return {
    kind,
    epoch: 0,
    round: -1,
    microBatch: -1,
    ...(control === undefined ? {} : { control }),
    ...(tensors === undefined ? {} : { tensors }),
  };
}

const vector = (length: number, type: 'float32' | 'int32' = 'float32'): Tensor =>
  tensor(type, [length], new Array(length).fill(0));
const prepared = { round: 0, lossSum: 1, correctCount: 0, squaredNorm: 1, finite: true, roundMs: 1, busyMs: 1 };
const layerProfile = { name: 'x', outputBytes: 1, weightBytes: 1, savedBytes: 1, flops: 1, batchDependent: false };
const row = new Array(layerCount).fill(1);
const layers = new Array(layerCount).fill(layerProfile);

/** What `b` sends when the phase begins, and why that is wrong. */
const wrong: readonly (readonly [string, Phase, Frame, RegExp])[] = [
  ['an unknown kind', 'preparing', frame('nonsense', {}), /b sent a message of the unknown kind "nonsense"/],
  [
    'a name of every object',
    'preparing',
    frame('constructor', {}),
    /b sent a message of the unknown kind "constructor"/,
  ],
  ['pipeline data', 'training', frame('activation', undefined, [vector(4)]), /unknown kind "activation"/],
  ['no control part', 'preparing', frame('ready'), /b sent a wrong "ready" message/],
  ['a wrong type', 'preparing', frame('ready', { listenUrl: 7 }), /b sent a wrong "ready" message: listenUrl /],
  [
    'a text that is too long',
    'preparing',
    frame('ready', { listenUrl: 'x'.repeat(301) }),
    /b sent a wrong "ready" message: listenUrl /,
  ],
  [
    'an answer out of turn',
    'preparing',
    frame('deployed', { valueBytes: 1 }),
    /it answered "deployed" while preparing, which the protocol does not allow/,
  ],
  [
    'an answer before it was asked',
    'connecting',
    frame('measured', { links: [] }),
    /it answered "measured" while connecting/,
  ],
  [
    'the answer of a device that was not asked',
    'measuring',
    frame('measured', { links: [] }),
    /it answered "measured" while measuring/,
  ],
  [
    'a link to nobody',
    'measuring',
    frame('measured', { links: [{ peer: 'z', bandwidthMbps: 1, latencyMs: 1 }] }),
    /b measured links that it does not have/,
  ],
  [
    'a link to itself',
    'measuring',
    frame('measured', { links: [{ peer: 'b', bandwidthMbps: 1, latencyMs: 1 }] }),
    /b measured links that it does not have/,
  ],
  [
    'a link without bandwidth',
    'measuring',
    frame('measured', { links: [{ peer: 'c', bandwidthMbps: 0, latencyMs: 1 }] }),
    /b sent a wrong "measured" message: links.0.bandwidthMbps/,
  ],
  [
    'too many links',
    'measuring',
    frame('measured', { links: new Array(2001).fill({ peer: 'c', bandwidthMbps: 1, latencyMs: 1 }) }),
    /b sent a wrong "measured" message: links /,
  ],
  [
    'a profile of too few layers',
    'profiling',
    frame('profiled', { layers: layers.slice(1), times: { forwardMs: [row], backwardMs: [row] }, cached: false }),
    /b sent a profile that is not of 4 layers at 1 batch sizes/,
  ],
  [
    'a profile with a short row',
    'profiling',
    frame('profiled', { layers, times: { forwardMs: [row], backwardMs: [row.slice(1)] }, cached: false }),
    /b sent a profile that is not of 4 layers/,
  ],
  [
    'a profile of other batch sizes',
    'profiling',
    frame('profiled', { layers, times: { forwardMs: [row, row], backwardMs: [row, row] }, cached: false }),
    /b sent a profile that is not of 4 layers/,
  ],
  [
    'a negative time',
    'profiling',
    frame('profiled', { layers, times: { forwardMs: [[-1, 1, 1, 1]], backwardMs: [row] }, cached: false }),
    /b sent a wrong "profiled" message: times.forwardMs.0.0/,
  ],
  [
    'a loss that JSON does not know',
    'training',
    frame('prepared', { ...prepared, lossSum: Number.NaN }),
    /b sent a wrong "prepared" message: lossSum/,
  ],
  ['another round', 'training', frame('prepared', { ...prepared, round: 3 }), /it prepared round 3 instead of 0/],
  [
    'weights that nobody asked for',
    'training',
    frame('state', { role: 'parameter', name: 'a.bias' }, [vector(7)]),
    /b sent the parameter a.bias, which it was not asked for/,
  ],
  [
    'a role that there is not',
    'training',
    frame('state', { role: 'gradient', name: 'a.bias' }, [vector(7)]),
    /b sent a wrong "state" message: role/,
  ],
  ['a failure', 'training', frame('failed', { message: 'the disk is on fire' }), /^the disk is on fire$/],
];

/**
 * Why b is gone: it loses its connection and the others go on without it, to the end; or, before training, what it did
 * ends the run, which says so. The others end in good order either way.
 */
async function whyGone(cluster: MemoryCluster, device = 'b'): Promise<string> {
  const error: unknown = await cluster.coordinator.end.then(
    () => undefined,
    (reason: unknown) => reason,
  );
  const ends = await cluster.workersEnd();
  assert.equal(ends.size, 3);
  for (const name of ['a', 'b', 'c'])
    if (name !== device) assert.equal(ends.get(name)?.clean, true, ends.get(name)?.reason);
  if (error === undefined) {
    assert.equal(cluster.losses.length, 4);
    const left = cluster.events.filter((event) => event.kind === 'left');
    assert.deepEqual(
      left.map((event) => event.device),
      [device],
    );
    return left[0]?.reason ?? '';
  }
  assert.ok(error instanceof RunError, String(error));
  assert.match(error.message, new RegExp(`^Training ended: ${device} `));
  assert.deepEqual([...cluster.checkpoints.keys()], []);
  return error.message;
}

for (const [what, phase, bad, expected] of wrong) {
  test(`${what} while ${phase}`, { timeout }, async () => {
    let isSent = false;
    const cluster = await startCluster({
      ...(phase === 'measuring' || phase === 'profiling' ? measured : planned),
      observe: (event, { workers }) => {
        if (event.kind !== 'phase' || event.phase !== phase || isSent) return;
        isSent = true;
        // Messages about a layout bear its epoch.
        const epoch = phase === 'training' ? 4 : 0;
        void workers.get('b')?.link.send({ ...bad, epoch }, 'control');
      },
    });
    assert.match(await whyGone(cluster), expected);
  });
}

/** What `c`, which owns the last two layers, sends in place of a piece of its snapshot. */
const wrongState: readonly (readonly [string, Frame, RegExp])[] = [
  [
    'weights of another stage',
    frame('state', { role: 'parameter', name: 'a.bias' }, [vector(7)]),
    /c sent the parameter a.bias, which it was not asked for/,
  ],
  [
    'weights of no stage',
    frame('state', { role: 'parameter', name: 'toString' }, [vector(7)]),
    /c sent the parameter toString, which it was not asked for/,
  ],
  [
    'optimizer state of no parameter',
    frame('state', { role: 'optimizer', name: 'x/momentum' }, [vector(7)]),
    /c sent the optimizer x\/momentum, which it was not asked for/,
  ],
  ['no tensor', frame('state', { role: 'parameter', name: 'c.bias' }), /c sent the parameter c.bias in another size/],
  [
    'another shape',
    frame('state', { role: 'parameter', name: 'c.bias' }, [vector(6)]),
    /c sent the parameter c.bias in another size/,
  ],
  [
    'another type',
    frame('state', { role: 'parameter', name: 'c.bias' }, [vector(7, 'int32')]),
    /c sent the parameter c.bias in another size/,
  ],
  [
    'optimizer state of another shape',
    frame('state', { role: 'optimizer', name: 'c.bias/momentum' }, [vector(6)]),
    /in another size/,
  ],
  ['the end of another round', frame('snapshot-end', { round: 7 }), /it sent the weights of round 7 instead of 2/],
  ['the end before the weights', frame('snapshot-end', { round: 2 }), /it sent no (c|head)\.\w+/],
];

for (const [what, bad, expected] of wrongState) {
  test(`${what} in a snapshot`, { timeout }, async () => {
    let isSent = false;
    const cluster = await startCluster({
      ...planned,
      observe: (event, { workers }) => {
        if (event.kind !== 'statistics' || event.device !== 'a' || isSent) return;
        isSent = true;
        void workers.get('c')?.link.send({ ...bad, epoch: 4 }, 'control');
      },
      // What c itself sends comes later: its engine takes its time.
      createEngine: (device) => {
        const engine = createReferenceEngine();
        if (device !== 'c') return engine;
        const download = engine.download.bind(engine);
        engine.download = async (value) => {
          for (let turn = 0; turn < 100; turn++) await new Promise(setImmediate);
          return download(value);
        };
        return engine;
      },
    });
    assert.match(await whyGone(cluster, 'c'), expected);
  });
}

test('frames of late rounds, epochs and micro-batches in honest messages change nothing', { timeout }, async () => {
  const cluster = await startCluster({
    ...measured,
    observe: (event, { workers }) => {
      if (event.kind !== 'phase') return;
      void workers
        .get('b')
        ?.link.send(
          { ...frame('profile-progress', { done: 1, total: 2 }), epoch: 4_000_000_000, round: 5, microBatch: 9 },
          'control',
        );
    },
  });
  assert.equal((await cluster.outcome()).losses.length, 4);
});

/** The honest answers of a single device, by what it is asked. */
function answersTo(
  asked: Frame,
): readonly (readonly [kind: keyof ToCoordinator, control: unknown, tensors?: readonly Tensor[]])[] {
  switch (asked.kind) {
    case 'model':
      return [['ready', { listenUrl: 'memory://a' }]];
    case 'connect':
      return [['connected', {}]];
    case 'measure':
      return [['measured', { links: [] }]];
    case 'profile':
      return [
        ['profile-progress', { done: 1, total: 2 }],
        ['profiled', { layers, times: { forwardMs: [row], backwardMs: [row] }, cached: false }],
      ];
    case 'deploy':
      return [['deployed', { valueBytes: 8 }]];
    case 'round':
      return [
        ['prepared', { ...prepared, round: (asked.control as { round: number }).round }],
        ['trace', { round: 0, times: [{ instruction: 0, startMs: 0, endMs: 1 }] }],
      ];
    case 'snapshot':
      return [
        ...[...subject.state.parameter].map(
          ([name, value]) => ['state', { role: 'parameter', name }, [value]] as const,
        ),
        ['statistics', { eventLoopDelayP99Ms: 1, eventLoopDelayMaxMs: 1, peakMemoryMiB: 1 }],
        ['snapshot-end', { round: (asked.control as { round: number }).round }],
      ];
    default:
      return [];
  }
}

/** One run with a single scripted device, whose message number `wrongAt` is mutated. True when the run ended well. */
async function runWithOne(seed: number, wrongAt: number): Promise<{ isWell: boolean; messageCount: number }> {
  const random = createRandom(seed, wrongAt);
  const alone = { ...plan, stages: [{ layers: [0, layerCount] as const, devices: ['a'], samples: [4], inFlight: 2 }] };
  const cluster = await startCluster({
    ...measured,
    workerNames: [],
    choosePlan: () => alone,
    machine: { ...measured.machine, workerCount: 1 },
  });
  const link = cluster.joinAlone('a');
  let messageCount = 0;
  link.receive((asked) => {
    for (const [kind, control, tensors] of answersTo(asked)) {
      const isWrong = messageCount++ === wrongAt;
      void link.send(
        { ...frame(kind, isWrong ? mutateJson(control, random) : control, tensors), epoch: asked.epoch },
        'control',
      );
    }
    // Whatever a mutation made of the last answer, the link does not stay open for ever.
    if ((wrongAt >= 0 && messageCount > wrongAt + 20) || asked.kind === 'end') void link.close('enough');
  });
  const giveUp = setTimeout(() => void link.close('silence'), 15_000);
  try {
    await cluster.coordinator.end;
    return { isWell: true, messageCount };
  } catch (error) {
    const isTyped = error instanceof RunError || error instanceof InputError || error instanceof ProtocolError;
    assert.ok(isTyped, `seed ${seed}, message ${wrongAt}: ${error instanceof Error ? error.stack : String(error)}`);
    assert.ok(!error.message.includes('silence'), `seed ${seed}, message ${wrongAt}: ${error.message}`);
    assert.match(error.message, /^[^\n]{10,700}$/);
    return { isWell: false, messageCount };
  } finally {
    clearTimeout(giveUp);
    await link.ended;
  }
}

test('1,000 messages with one thing wrong: each run ends, with a typed error or well', {
  timeout: 60_000,
}, async () => {
  const { isWell, messageCount } = await runWithOne(0, -1);
  assert.equal(isWell, true);
  let failureCount = 0;
  for (let seed = 0; seed < 1000; seed++) {
    const { isWell } = await runWithOne(seed, seed % (messageCount + 1));
    if (!isWell) failureCount++;
  }
  assert.ok(failureCount > 500, String(failureCount));
  assert.ok(defined(subject.state.parameter.get('a.bias'), 'a.bias').data.length === 7);
});
