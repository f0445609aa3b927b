// Programs as ticks of a stream: instructions of one tick belong to several rounds. Two stages of one device each, one
// micro-batch a round, as FTPipeHD runs them: forward of round t + P − 1 − p and backward of round t.
//
//   tick      −1    0        1        2
//   a         F0    F1 B0    F2 B1    F3 B2
//   b               F0 B0    F1 B1    F2 B2
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { PlanLayout } from '../cluster/cluster.ts';
import { checkProgram } from './check.ts';
import { programOf } from './generate.ts';
import { passes, payloads } from './passes.ts';
import type { Instruction, Pass, Program } from './program.ts';
import { programText } from './text.ts';
import { unroll } from './unroll.ts';

const plan: PlanLayout = {
  planner: 'test',
  schedule: '1f1b',
  batchSize: 2,
  microBatchSize: 2,
  microBatchCount: 1,
  stages: [
    { layers: [0, 1], devices: ['a'], samples: [2], inFlight: 2 },
    { layers: [1, 2], devices: ['b'], samples: [2], inFlight: 1 },
  ],
};

/** One word of a text form of all samples: "F0+1", "?G0←b", "!A0+1→b", "U". */
function instructionOf(word: string): Instruction {
  const found = /^(?<sign>[?!]?)(?<letter>[A-Z])(?<at>\d*)(?<offset>\+\d+)?(?:[←→](?<end>\w+))?$/u.exec(word)?.groups;
  const { sign, letter, at, offset, end = '' } = found ?? assert.fail(word);
  const shared = { microBatch: Number(at), ...(offset === undefined ? {} : { round: Number(offset) }) };
  const named = <Row extends { readonly letter: string }>(table: Readonly<Record<string, Row>>): string =>
    Object.keys(table).find((name) => table[name]?.letter === letter) ?? assert.fail(word);
  if (letter === 'U') return { kind: 'update', ...(offset === undefined ? {} : { round: Number(offset) }) };
  if (sign === '') return { kind: named(passes), ...shared } as Instruction;
  const piece = { payload: named(payloads), ...shared, samples: [0, 2] as const };
  return (sign === '?' ? { kind: 'receive', ...piece, from: end } : { kind: 'send', ...piece, to: end }) as Instruction;
}

function tick(...lines: readonly string[]): Program {
  const devices = lines.map((line, stage) => {
    const [device = '', ...words] = line.split(' ');
    const layers = [stage, stage + 1] as const;
    const instructions = words.map(instructionOf);
    return { device: device.replace(':', ''), stage, layers, samples: [0, 2] as const, instructions };
  });
  return { schedule: 'stream', microBatchSize: 2, microBatchCount: 1, stageCount: 2, devices };
}

const a = 'a: F0+1 !A0+1→b ?G0←b B0 U';
const b = 'b: ?A0←a F0 B0 !G0→a U';

test('an asynchronous tick passes the check, and its text is what it was written as', () => {
  const program = tick(a, b);
  checkProgram(program, plan);
  assert.equal(programText(program, { transfers: true }), `${a}\n${b}`);
  assert.equal(programText(program), 'a: F0+1 B0 U\nb: F0 B0 U');
});

test('a tick is written out over three rounds: it fills, runs and drains', () => {
  const { roundCount, microBatchCount, devices } = unroll(tick(a, b));
  assert.deepEqual([roundCount, microBatchCount], [3, 3]);
  const computed = devices.map(({ instructions }) =>
    instructions.flatMap((step) =>
      'payload' in step || !('microBatch' in step) ? [] : [step.kind[0], step.microBatch],
    ),
  );
  assert.deepEqual(computed[0]?.join(''), 'f0f1b0f2b1b2');
  assert.deepEqual(computed[1]?.join(''), 'f0b0f1b1f2b2');
});

const mistakes: readonly (readonly [title: string, lines: readonly [string, string], message: RegExp])[] = [
  [
    'a forward without its offset',
    ['a: F0 !A0+1→b ?G0←b B0 U', b],
    /"a" \(stage 0\) has !A0\+1\[0,2\)→b, of another round than the pass that gives it/,
  ],
  [
    'the gradient of another round is received',
    ['a: F0+1 !A0+1→b ?G0+1←b B0 U', b],
    /"a" \(stage 0\) has \?G0\+1\[0,2\)←b, of another round than the pass that takes it/,
  ],
  [
    'the gradient of another round is sent',
    [a, 'b: ?A0←a F0 B0 !G0+1→a U'],
    /"b" \(stage 1\) has !G0\+1\[0,2\)→a, of another round than the pass that gives it/,
  ],
  [
    'more micro-batches in flight than K_p',
    ['a: F0+2 !A0+2→b ?G0←b B0 U', b],
    /"a" \(stage 0\) keeps 3 micro-batches in flight, 2 allowed, at the forward of micro-batch 0 of round 2/,
  ],
  [
    'a round that is computed twice',
    ['a: F0+1 !A0+1→b F0 ?G0←b B0 U', b],
    /"a" \(stage 0\) runs the forward of micro-batch 0 of round 0 twice/,
  ],
  [
    'a backward a round before its gradient is awaited',
    ['a: F0+1 !A0+1→b B0+1 ?G0+1←b U', b],
    /"a" \(stage 0\) runs the backward of micro-batch 0 of round 0 without exactly its gradient pieces/,
  ],
  [
    'a backward of a round whose forward comes later',
    [a, 'b: ?A0←a B0+1 F0 !G0+1→a U'],
    /"b" \(stage 1\) runs the backward of micro-batch 0 of round 0 before its forward/,
  ],
  [
    'an update before its round has gradients',
    ['a: F0+1 !A0+1→b U ?G0←b B0', b],
    /"a" \(stage 0\) updates before the gradients of micro-batch 0 of round 0/,
  ],
  [
    'an update of the wrong round',
    ['a: F0+1 !A0+1→b ?G0←b B0 U+1', b],
    /"a" \(stage 0\) updates before the gradients of micro-batch 0 of round 0/,
  ],
];

for (const [title, lines, message] of mistakes)
  test(`caught and named: ${title}`, () => assert.throws(() => checkProgram(tick(...lines), plan), message));

const deeper: PlanLayout = { ...plan, stages: plan.stages.map((stage) => ({ ...stage, inFlight: 3 })) };

test('caught: a stage that wants activations two rounds ahead of a stage that sends one ahead and then waits', () => {
  const broken = tick(a, 'b: ?A0+2←a F0+2 B0 !G0→a U');
  const message = /"\w" \(stage \d\) waits for ever at \S+: the program has a cycle of waits/;
  assert.throws(() => checkProgram(broken, deeper), message);
});

test('the generator gives what a pass receives and sends its offset', () => {
  const passOf = (kind: 'forward' | 'backward', round?: number): Pass => ({
    ...{ kind, microBatch: 0 },
    ...(round === undefined ? {} : { round }),
  });
  const orders = [
    [passOf('forward', 1), passOf('backward')],
    [passOf('forward'), passOf('backward')],
  ];
  const program = programOf(plan, orders, { feed: false });
  checkProgram(program, plan);
  assert.equal(programText(program, { transfers: true }), `${a}\n${b}`);
});

test('a stage further ahead passes where the one before sends early enough', () => {
  const ahead = tick('a: F0+2 !A0+2→b ?G0←b B0 U', 'b: ?A0+1←a F0+1 B0 !G0→a U');
  checkProgram(ahead, deeper);
});
