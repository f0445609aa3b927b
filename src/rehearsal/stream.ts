// A stream of rounds over two exact stages, by the production's executor, without coordinator and links: each tick
// computes a round forward and the round before it backward, so that every round is computed with weights that lag one
// update behind. Checked against the oracle of uniform staleness: one device, on which the gradient of round t is that
// at version max(0, t − 1). It shows what no synchronous schedule can: a backward pass must read what its forward read.
//
//   stage 0   F0 ·  │ F1 B0 U0 │ F2 B1 U1 │ …        F1 reads version 0, B1 is after U0 and still reads version 0
//   stage 1   F0 ·  │ F1 B0 U0 │ F2 B1 U1 │ …

import { defined } from '../assert.ts';
import type { Tensor } from '../graph/tensor.ts';
import { StreamState } from '../runtime/device/instructions.ts';
import { Mailbox } from '../runtime/device/mailbox.ts';
import { feedName } from '../runtime/device/pieces.ts';
import { runRound } from '../runtime/device/round.ts';
import type { RoundPorts } from '../runtime/device/round-ports.ts';
import { wholeForm } from '../runtime/device/stage-form.ts';
import { Failure } from '../runtime/protocol/failure.ts';
import type { DeviceProgram, Instruction } from '../schedule/program.ts';
import { createExactEngine, type ExactEngine } from './exact-engine.ts';
import { batchOf, exactSequence, initialRunState, label, learningRate, Oracle, trainingSpec } from './exact-model.ts';
import { ExactStage } from './exact-stage.ts';
import { VirtualProcess } from './virtual-process.ts';
import { VirtualTime } from './virtual-time.ts';

export interface StreamOptions {
  readonly seed: number;
  readonly roundCount: number;
  /** A planted mistake: backward passes read the weights as they are. */
  readonly isLive?: boolean;
}

/** What came of a stream. */
export interface StreamReport {
  /** What differs from the oracle, or what a stage has seen that must not be. */
  readonly violations: readonly string[];
  /** Values that are left in the engines, beyond each stage's state. */
  readonly valuesLeft: number;
}

const layerCount = 4;
const batchSize = 3;
const staleness = 1;
const names = ['stage 0', 'stage 1'] as const;

/** One tick of a stage: round t forward, round t − 1 backward. */
function tickOf(stage: 0 | 1): DeviceProgram {
  const part = { microBatch: 0, samples: [0, batchSize] as const };
  const [before, other] = [{ round: -1 }, names[1 - stage] as string];
  const first: Instruction[] = [
    { kind: 'receive', payload: 'input', from: null, ...part },
    { kind: 'forward', microBatch: 0 },
    { kind: 'send', payload: 'activation', to: other, ...part },
    { kind: 'receive', payload: 'gradient', from: other, ...part, ...before },
    { kind: 'backward', microBatch: 0, ...before },
  ];
  const last: Instruction[] = [
    { kind: 'receive', payload: 'label', from: null, ...part },
    { kind: 'receive', payload: 'activation', from: other, ...part },
    { kind: 'forward', microBatch: 0 },
    { kind: 'backward', microBatch: 0, ...before },
    { kind: 'send', payload: 'gradient', to: other, ...part, ...before },
  ];
  const layers = [(stage * layerCount) / 2, ((stage + 1) * layerCount) / 2] as const;
  const instructions: Instruction[] = [...(stage === 0 ? first : last), { kind: 'update', ...before }];
  return { device: names[stage], stage, layers, samples: [0, batchSize], instructions };
}

interface Member {
  readonly program: DeviceProgram;
  readonly stage: ExactStage;
  readonly engine: ExactEngine;
  readonly mailbox: Mailbox;
}

function memberOf(stage: 0 | 1, { seed, isLive = false }: StreamOptions, violate: (what: string) => void): Member {
  const program = tickOf(stage);
  const process = new VirtualProcess(new VirtualTime(), {
    name: program.device,
    host: program.device,
    clockOriginMs: 0,
  });
  const engine = createExactEngine(process);
  const common = { sequence: exactSequence(layerCount), training: trainingSpec(seed, batchSize, false), label };
  const share = { layers: program.layers, sampleCount: batchSize, microBatchSize: batchSize };
  const world = { engine, msPerSample: () => 0, epoch: () => 0, violate, staleness } as const;
  const made = new ExactStage(
    { ...common, ...share, form: wholeForm },
    { ...world, backwardReads: isLive ? 'live' : 'held' },
  );
  const state = initialRunState(seed, layerCount);
  const own = new Set(made.missingState());
  for (const role of ['parameter', 'buffer'] as const)
    for (const [name, value] of state[role])
      if (own.has(name)) made.load({ role, name, value: { ...value, data: value.data.slice() } });
  return { program, stage: made, engine, mailbox: new Mailbox(Number.POSITIVE_INFINITY) };
}

/** Feeds a round to both stages. */
function feed([first, last]: readonly [Member, Member], seed: number, round: number): void {
  const { inputs, labels } = batchOf(seed, round, batchSize);
  const put = ({ mailbox }: Member, kind: 'input' | 'label', tensors: readonly Tensor[]): void =>
    mailbox.put({ kind, round, microBatch: 0, from: feedName }, { kind, epoch: 0, round, microBatch: 0, tensors });
  put(first, 'input', inputs);
  put(last, 'label', [labels]);
}

/** Runs the stream, with two ticks more than rounds at most to drain it. */
export async function rehearseStream(options: StreamOptions): Promise<StreamReport> {
  const { seed, roundCount } = options;
  const violations: string[] = [];
  const violate = (what: string): void => void violations.push(what);
  const members = [memberOf(0, options, violate), memberOf(1, options, violate)] as const;
  const oracle = new Oracle({ seed, layerCount, batchSize, isClipped: false, staleness });
  const failure = new Failure();
  const run = async (member: Member): Promise<void> => {
    const stream = { firstRound: 0, endRound: roundCount, state: new StreamState() };
    for (let tick = 0; tick < roundCount + staleness; tick++) {
      const { outcome } = await runRound(
        member.program,
        member.stage,
        tick,
        portsOf(member, members, failure, tick),
        stream,
      );
      const { result } = await outcome;
      member.stage.dropVersion(tick);
      const isCounted = member.stage.isLast && tick >= staleness;
      if (isCounted && result.lossSum !== oracle.lossSum(result.round))
        violate(`the loss of round ${result.round} is ${result.lossSum}, not ${oracle.lossSum(result.round)}`);
    }
  };
  for (let round = 0; round < roundCount; round++) feed(members, seed, round);
  await Promise.all(members.map(run));
  const state = { parameter: new Map(), buffer: new Map(), optimizer: new Map() };
  for (const { stage } of members)
    for await (const { role, name, value } of stage.state()) state[role].set(name, value);
  const difference = oracle.difference(state, roundCount);
  if (difference !== undefined) violate(difference);
  for (const { stage } of members) stage.dispose();
  return { violations, valuesLeft: members.reduce((sum, { engine }) => sum + engine.valueCount(), 0) };
}

function portsOf(member: Member, members: readonly Member[], failure: Failure, tick: number): RoundPorts {
  const round = tick - staleness;
  const update = { learningRate: learningRate(round), gradientScale: 1, step: round + 1 };
  return {
    clock: { now: () => 0, after: () => () => {} },
    failure,
    send: async (to, frame) => {
      const { mailbox } = defined(
        members.find(({ program }) => program.device === to),
        to,
      );
      mailbox.put({ ...frame, from: member.program.device }, { ...frame, epoch: 0 });
    },
    receive: (key) => member.mailbox.take(key),
    updates: { due: async () => update },
  };
}
