// A stage that computes made-up micro-batches, so that it can be timed: the very graphs and calls of a run (packs, sums
// of gradients, loss, one graph for both passes on the last stage), without links. Times are what is worked, not what
// anyone waits: where the process shares a processor with its engine, what the engine's thread works and what the main
// thread does besides, as rounds are judged (drift.ts); garbage, which trials make more of, is neither's. Elsewhere the
// engine's.

import { defined } from '../../../assert.ts';
import type { Engine } from '../../../engine/engine.ts';
import type { ProcessClock, ProcessWork } from '../../../engine/process-clock.ts';
import type { CutTensor } from '../../../graph/layers.ts';
import {
  allocate,
  type ElementArray,
  type ElementType,
  elementCount,
  isFloat,
  type Tensor,
} from '../../../graph/tensor.ts';
import { createRandom } from '../../../random.ts';
import { mean, median } from '../../../statistics.ts';
import { createStage } from '../create-stage.ts';
import type { StageCuts, StageMemory } from '../stage.ts';
import type { StageOptions } from '../stage-graphs.ts';

/**
 * Milliseconds of one micro-batch. Where both passes are one graph, all is `backwardMs`; of forward gradients all is
 * `forwardMs`.
 */
export interface TrialTimes {
  readonly forwardMs: number;
  readonly backwardMs: number;
  /** Of backwardMs, the pass of the input gradients where there are two; else 0. */
  readonly inputMs: number;
  /**
   * What the main thread does besides, weight passes apart; undefined where that takes nothing from the engine, or is
   * not known.
   */
  readonly mainMs: number | undefined;
}

/** What is worked in some time. Milliseconds; `mainMs` as in TrialTimes. */
export interface Work {
  readonly computeMs: number;
  readonly mainMs: number | undefined;
}

const noWork: Work = { computeMs: 0, mainMs: 0 };

/** Undefined where the process's clock does not run, or does not know the threads. */
function workBetween(before: ProcessWork | undefined, after: ProcessWork | undefined): Work | undefined {
  if (before?.computeMs === undefined || after?.computeMs === undefined || after.processMs === before.processMs)
    return undefined;
  return {
    computeMs: after.computeMs - before.computeMs,
    mainMs: before.mainMs === undefined || after.mainMs === undefined ? undefined : after.mainMs - before.mainMs,
  };
}

/** A stage under trial. */
export interface StageTrial {
  /**
   * Computes one more micro-batch, whose gradients are added to the sum; before the first after an update the sum is
   * made.
   */
  microBatch(): Promise<TrialTimes>;
  /**
   * Milliseconds of what a round has once, whatever its micro-batches: the gradients' norm, the update, and of forward
   * gradients the directions, which are drawn for the passes and again for the update.
   */
  update(): Promise<number>;
  /** Frees everything. */
  release(): void;
}

/** Compiles a stage with made-up weights. `processWork`: what this process has done (`createProcessClock`). */
export async function createStageTrial(
  engine: Engine,
  options: StageOptions,
  processWork?: ProcessClock,
): Promise<StageTrial> {
  const { grain: _, ...training } = options.training; // times are of whole shares
  const stage = await createStage(engine, { ...options, training });
  loadMadeUp(stage, options);
  const timed = (work: () => Promise<unknown>): Promise<Work> => timedWork(engine, processWork, work);
  const { inputs, gradients, labels } = madeUpTensors(stage, options.sampleCount);
  const isSplit = options.form.passes === 'split';
  const { tangents } = stage;
  let step = 0;
  stage.beginRound(step);
  await engine.settled();
  return {
    async microBatch() {
      const [given, target, seeds] = [inputs.map(copied), labels && copied(labels), gradients.map(copied)];
      const forward = await timed(() => stage.forward({ round: 0, index: 0 }, 0, given, target));
      if (tangents !== undefined)
        return { forwardMs: forward.computeMs, backwardMs: 0, inputMs: 0, mainMs: forward.mainMs };
      const backward = await timed(() =>
        isSplit ? stage.backwardInput({ round: 0, index: 0 }, seeds) : stage.backward({ round: 0, index: 0 }, seeds),
      );
      const weight = isSplit ? await timed(async () => stage.backwardWeight({ round: 0, index: 0 })) : noWork;
      return {
        forwardMs: forward.computeMs,
        backwardMs: backward.computeMs + weight.computeMs,
        inputMs: isSplit ? backward.computeMs : 0,
        mainMs:
          forward.mainMs === undefined || backward.mainMs === undefined ? undefined : forward.mainMs + backward.mainMs,
      };
    },
    async update() {
      const { computeMs } = await timed(async () => {
        tangents?.estimate(
          0,
          Array.from({ length: tangents.count }, () => 1),
        );
        const totals = stage.finishRound(true);
        stage.update({ learningRate: 0, gradientScale: 1, step: ++step });
        await totals;
        stage.beginRound(step);
        stage.dropVersion(step - 1);
        tangents?.draw(0); // micro-batches of a trial are all of round 0
      });
      return computeMs;
    },
    release: () => stage.dispose(),
  };
}

/** What is worked until `work` and everything that it queues is done. */
export async function timedWork(
  engine: Engine,
  processWork: ProcessClock | undefined,
  work: () => Promise<unknown>,
): Promise<Work> {
  const now = (): ProcessWork | undefined => processWork?.(engine.threadMs?.());
  const [beforeMs, before] = [engine.busyMs(), now()];
  await work();
  await engine.settled();
  return workBetween(before, now()) ?? { computeMs: engine.busyMs() - beforeMs, mainMs: undefined };
}

/** What a stage gets from outside for a micro-batch. */
function madeUpTensors({ inputs, outputs, label, isLast }: StageCuts, sampleCount: number) {
  const differentiable = outputs.filter((cut) => cut.differentiable);
  return {
    inputs: madeUpCuts(inputs, sampleCount),
    gradients: isLast ? [] : madeUpCuts(differentiable, sampleCount),
    labels: isLast ? madeUpCuts([label], sampleCount)[0] : undefined,
  };
}

/** Weights of about the size that keeps activations where they are from layer to layer, and positive statistics. */
function loadMadeUp(stage: Pick<StageMemory, 'load'>, { sequence, layers: [first, end] }: StageOptions): void {
  const random = createRandom(1);
  const { initializers } = sequence.graph;
  for (const { parameters, buffers } of sequence.layers.slice(first, end)) {
    for (const [role, names] of [
      ['parameter', parameters],
      ['buffer', buffers],
    ] as const) {
      for (const name of names) {
        const { type, shape } = defined(initializers.get(name), name);
        const data = allocate(type, elementCount(shape));
        const isVector = shape.length < 2 || role === 'buffer';
        const scale = Math.sqrt(3 / Math.max(1, elementCount(shape.slice(1))));
        fill(data, () => (isVector ? 0.5 + random.uniform() : scale * (2 * random.uniform() - 1)));
        stage.load({ role, name, value: { type, shape, data } });
      }
    }
  }
}

function madeUpCuts(cuts: readonly CutTensor[], sampleCount: number): readonly Tensor[] {
  const random = createRandom(2);
  return cuts.map(({ type, shape }) =>
    madeUp(
      type,
      shape.map((dimension) => (dimension === 'N' ? sampleCount : dimension)),
      random.uniform,
    ),
  );
}

/** Numbers that no kernel is slowed by: floats in [0.1, 1.1), zeros for integers (they may be indices). */
export function madeUp(type: ElementType, shape: readonly number[], uniform: () => number): Tensor {
  const data = allocate(type, elementCount(shape));
  if (isFloat(type)) fill(data, () => 0.1 + uniform());
  return { type, shape: [...shape], data };
}

/** Numbers that are drawn before they repeat. */
const drawnCount = 4099;

/** Numbers as they are drawn, then again: drawing those of large weights takes longer than a micro-batch. */
function fill(data: ElementArray, draw: () => number): void {
  const drawn = Math.min(drawnCount, data.length);
  for (let index = 0; index < drawn; index++) data[index] = draw();
  for (let filled = drawn; filled < data.length; filled *= 2) data.copyWithin(filled, 0, filled);
}

function copied(tensor: Tensor): Tensor {
  return { ...tensor, data: tensor.data.slice() as ElementArray };
}

/** What a time is a mean over: runs until `ms` are spent, at most `runLimit` of them. */
export interface Span {
  readonly ms: number;
  readonly runLimit: number;
  /** Spans of a measurement, of which the median counts. */
  readonly count: number;
  /** At least so many runs before: the first micro-batches of new graphs take longer. */
  readonly warmRuns: number;
}

const warmMs = 10;
/** Runs of a stage that together take so long are enough, whatever the spans. */
const enoughMs = 1_000;
/** Warming up ends where it has taken this long. */
const warmLimitMs = 3_000;

/** The mean time of a micro-batch over a span; the median of several spans. */
export async function timeMicroBatches(trial: StageTrial, span: Span): Promise<TrialTimes> {
  return defined((await timeInTurn([trial], span))[0], 'a time');
}

/**
 * Times several stages, a span of each in turn: what slows the device down for a while slows all of them, and
 * their times still compare.
 */
export async function timeInTurn(trials: readonly StageTrial[], span: Span): Promise<readonly TrialTimes[]> {
  const taken = trials.map((trial) => ({ trial, spans: [] as TrialTimes[], spanLimit: span.count }));
  for (const one of taken)
    one.spanLimit = Math.max(1, Math.min(span.count, Math.floor(enoughMs / (await warmUpTrial(one.trial, span)))));
  for (let turn = 0; turn < span.count; turn++)
    for (const { trial, spans, spanLimit } of taken) if (turn < spanLimit) spans.push(await meanTimes(trial, span));
  return taken.map(({ spans }) =>
    defined(spans.toSorted((a, b) => total(a) - total(b))[(spans.length - 1) >> 1], 'a span'),
  );
}

/**
 * The first micro-batches of new graphs take longer, the very first several times as long. The time of the last of
 * them.
 */
async function warmUpTrial(trial: StageTrial, { runLimit, warmRuns }: Span): Promise<number> {
  let [lastMs, warm] = [0, 0];
  for (let run = 0; warm < warmLimitMs && (run < warmRuns || (warm < warmMs && run < runLimit)); run++) {
    lastMs = total(await trial.microBatch());
    warm += lastMs;
  }
  return lastMs;
}

async function meanTimes(trial: StageTrial, { ms, runLimit }: Span): Promise<TrialTimes> {
  const runs: TrialTimes[] = [];
  do runs.push(await trial.microBatch());
  while (runs.reduce((spentMs, times) => spentMs + total(times), 0) < ms && runs.length < runLimit);
  return {
    forwardMs: mean(runs.map((times) => times.forwardMs)),
    backwardMs: mean(runs.map((times) => times.backwardMs)),
    inputMs: mean(runs.map((times) => times.inputMs)),
    mainMs: runs.some((times) => times.mainMs === undefined) ? undefined : mean(runs.map((times) => times.mainMs ?? 0)),
  };
}

/** What an update adds to a round of micro-batches: the median of `rounds`. */
export async function timeUpdate(trial: StageTrial, rounds: number = updateRounds): Promise<number> {
  const updates: number[] = [];
  for (let round = 0; round < rounds; round++) {
    await trial.microBatch();
    updates.push(await trial.update());
  }
  return median(updates);
}

const updateRounds = 5;

/** Both passes together. */
export function total({ forwardMs, backwardMs }: Pick<TrialTimes, 'forwardMs' | 'backwardMs'>): number {
  return forwardMs + backwardMs;
}
