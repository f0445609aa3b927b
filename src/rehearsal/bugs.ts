// Mistakes of common kinds, each built around the production's code on purpose, to see that the rehearsal finds it. A
// rehearsal that misses one proves nothing about others.

import type { Tensor } from '../graph/tensor.ts';
import { step as machineStep } from '../runtime/coordinator/machine.ts';
import type { MachineEffect, MachineInput, Step } from '../runtime/coordinator/machine-types.ts';
import type { StagePort } from '../runtime/device/stage.ts';
import type { Disk, DiskFile } from '../storage/disk.ts';
import type { Frame } from '../transport/link.ts';
import { rowLength } from './exact-model.ts';
import type { RehearsedModes } from './modes.ts';
import type { FaultKind } from './scenario.ts';
import type { Bug } from './world.ts';

/** A mistake, and the faults that reveal it. Default: all. */
export interface SeededBug {
  readonly make: () => Bug;
  readonly faults?: readonly FaultKind['kind'][];
  /** The runs that reveal it. Default: synchronous ones. */
  readonly modes?: RehearsedModes;
}

const losses = ['kill', 'freeze', 'partition', 'reset'] as const;
const pipelineKinds: ReadonlySet<string> = new Set(['activation', 'gradient', 'derivative', 'all-reduce']);

/** All planted mistakes, by name. */
export const seededBugs: Readonly<Record<string, SeededBug>> = {
  'frames of an earlier layout are taken for those of this one': {
    make: () => ({
      frame: (frame, { epoch }) => [pipelineKinds.has(frame.kind) && frame.epoch < epoch ? { ...frame, epoch } : frame],
    }),
    faults: ['reset', 'kill'],
  },
  'nothing is synced to the disk': { make: () => ({ disk: withoutSync }), faults: ['kill-coordinator'] },
  'a checkpoint has its name before its contents': { make: () => ({ disk: nameFirst }), faults: ['kill-coordinator'] },
  'a round commits twice': {
    make: () => onEffects((effect) => (effect.kind === 'committed' ? [effect, effect] : [effect])),
  },
  'the learning rate is that of the next round': {
    make: () =>
      onEffects((effect) => {
        if (effect.kind !== 'send' || effect.message !== 'round') return [effect];
        return [{ ...effect, control: { ...effect.control, learningRate: (effect.control.learningRate % 5) + 1 } }];
      }),
  },
  'a round commits before all have prepared': { make: () => ({ step: commitEarly }) },
  'the gradients of a micro-batch are not added': {
    make: () =>
      onStage((stage) => ({ backward: (microBatch, gradients) => stage.backwardInput(microBatch, gradients) })),
  },
  'a piece of the round before is taken for one of this round': { make: () => staleMail('activation') },
  'the state does not return': {
    make: () => onStage((stage) => ({ returnTo: (round) => void stage.versions.includes(round) })),
    faults: losses,
  },
  'a copy is made of the state as it is now': {
    make: () => onStage((stage) => ({ state: ({ round: _, ...options } = {}) => stage.state(options) })),
    faults: ['kill'],
  },
  'the state of the optimizer is left behind': {
    make: () =>
      onStage((stage) => ({
        state: async function* (options) {
          for await (const entry of stage.state(options)) if (entry.role !== 'optimizer') yield entry;
        },
      })),
  },
  'two devices get the same share': { make: sameShare },
  'samples come in another order': {
    make: () => ({ frame: (frame) => [frame.kind === 'activation' ? withReversedRows(frame) : frame] }),
  },
  'a loss is not heard of': {
    make: () => ({
      step: (config, state, input) => (input.kind === 'left' ? [state, []] : machineStep(config, state, input)),
    }),
    faults: losses,
  },
  'versions are released too early': {
    make: () =>
      onEffects((effect) => {
        if (effect.kind !== 'send' || effect.message !== 'release') return [effect];
        return [{ ...effect, control: { before: effect.control.before + 5 } }];
      }),
    faults: losses,
  },
  'a layout counts as a source before all of its state has come': {
    make: () => ({
      step(config, state, input) {
        const [next, effects] = machineStep(config, state, input);
        return [{ ...next, isSettled: true }, effects];
      },
    }),
    faults: ['kill', 'reset', 'drain', 'join'],
  },
  'the state of a stage is never let go': { make: () => onStage(() => ({ dispose: () => {} })) },
  'gradients are clipped by another factor': {
    make: () =>
      onEffects((effect) => {
        if (effect.kind !== 'send' || effect.message !== 'commit') return [effect];
        return [{ ...effect, control: { ...effect.control, gradientScale: effect.control.gradientScale + 1 } }];
      }),
  },
  'nothing is fed after a loss': {
    make: () => {
      let hasChanged = false;
      return onEffects((effect) => {
        hasChanged ||= effect.kind === 'changing';
        return hasChanged && effect.kind === 'feed' ? [] : [effect];
      });
    },
    faults: losses,
  },
  'a copy is taken for all of a stage': {
    make: () => onEffects((effect) => [effect.kind === 'deploy' ? { ...effect, copies: [] } : effect]),
    faults: ['kill'],
    modes: 'frozen',
  },
  'a backward pass reads the weights as they are': {
    make: () => ({ world: { backwardReads: 'live' } }),
    modes: 'async',
  },
  'weights are averaged one update late': { make: () => ({ world: { aggregatesLate: true } }), modes: 'async' },
  'a version of the weights is let go while a round still reads it': {
    make: () => ({ world: { forgetsEarly: true } }),
    modes: 'async',
  },
  'a batch is applied twice after a recovery': { make: batchAgain, faults: losses, modes: 'async' },
  'the pipeline does not drain before a pause': {
    make: () => onEffects((effect) => (effect.kind === 'send' && effect.message === 'flush' ? [] : [effect])),
    modes: 'async',
  },
  'an update draws other directions than the passes of its round': {
    make: () => ({ world: { drawsOtherDirections: true } }),
    modes: 'forward-gradient',
  },
  'a derivative of the round before is taken for one of this round': {
    make: () => staleMail('derivative'),
    modes: 'forward-gradient',
  },
  'tangents change places': {
    make: () => ({ frame: (frame) => [frame.kind === 'activation' ? withReversedTangents(frame) : frame] }),
    modes: 'forward-gradient',
  },
  'a request is answered twice': {
    make: () => ({ results: (...given) => (given[0] === 2 ? [given, given] : [given]) }),
    modes: 'infer',
  },
  'two answers change places': { make: changedPlaces, modes: 'infer' },
  'a request is lost in a recovery': { make: lostFeed, faults: losses, modes: 'infer' },
  'the samples of an answer come in another order': {
    make: () => ({ frame: (frame) => [frame.kind === 'output' ? withReversedRows(frame) : frame] }),
    modes: 'infer',
  },
};

/** Replaces the machine's effects. */
function onEffects(change: (effect: MachineEffect) => readonly MachineEffect[]): Bug {
  return {
    step(config, state, input) {
      const [next, effects] = machineStep(config, state, input);
      return [next, effects.flatMap(change)];
    },
  };
}

/** A round commits when the first device has prepared. */
function commitEarly(...[config, state, input]: Parameters<typeof machineStep>): Step {
  const isPrepared =
    input.kind === 'answer' && input.answer.kind === 'prepared' && state.waitingFor.includes(input.device);
  if (!isPrepared) {
    const isLate = input.kind === 'answer' && input.answer.kind === 'prepared';
    return isLate ? [state, []] : machineStep(config, state, input);
  }
  const result = { ...input.answer.result, lossSum: 0, correctCount: 0, squaredNorm: 0 };
  const others = state.waitingFor.filter((device) => device !== input.device);
  const inputs = [
    input,
    ...others.map((device): MachineInput => ({ ...input, device, answer: { kind: 'prepared', result } })),
  ];
  let [last, effects]: Step = [state, []];
  for (const next of inputs) {
    const [after, more] = machineStep(config, last, next);
    [last, effects] = [after, [...effects, ...more]];
  }
  return [last, effects];
}

/** Replaces some methods of the stage. */
function onStage(change: (stage: StagePort) => Partial<StagePort>): Bug {
  return {
    stage(stage) {
      const changed = change(stage);
      return new Proxy(stage, {
        get(target, name) {
          const own = (changed as Record<PropertyKey, unknown>)[name];
          if (own !== undefined) return own;
          const value = (target as unknown as Record<PropertyKey, unknown>)[name];
          return typeof value === 'function' ? value.bind(target) : value;
        },
      });
    },
  };
}

/** Activations are filed without their round: of two rounds at once, the older one is used. */
function staleMail(kind: 'activation' | 'derivative'): Bug {
  const before = new Map<string, Frame>();
  return {
    frame(frame, { from, to }) {
      if (frame.kind !== kind) return [frame];
      const key = `${from}→${to} ${frame.epoch} ${frame.microBatch}`;
      const former = before.get(key);
      before.set(key, frame);
      return [former === undefined ? frame : { ...frame, tensors: former.tensors ?? [] }];
    },
  };
}

/** After a change of the layout, each micro-batch's inputs come once more in the round after. */
function batchAgain(): Bug {
  const before = new Map<string, Frame>();
  let firstEpoch: number | undefined;
  return {
    frame(frame, { to }) {
      if (frame.kind !== 'input') return [frame];
      firstEpoch ??= frame.epoch;
      const key = `${to} ${frame.epoch} ${frame.microBatch}`;
      const former = before.get(key);
      before.set(key, frame);
      const isSameSize = former?.tensors?.[0]?.data.length === frame.tensors?.[0]?.data.length;
      const isAgain = frame.epoch > firstEpoch && former !== undefined && isSameSize;
      return [isAgain ? { ...frame, tensors: former.tensors ?? [] } : frame];
    },
  };
}

/** The results of rounds 1 and 2 come the other way round. */
function changedPlaces(): Bug {
  let held: readonly [number, readonly Tensor[]] | undefined;
  return {
    results(...given) {
      if (given[0] === 1) {
        held = given;
        return [];
      }
      return given[0] === 2 && held !== undefined ? [given, held] : [given];
    },
  };
}

/** The oldest request that was not answered when the layout changed is not sent again. */
function lostFeed(): Bug {
  let isNext = false;
  return onEffects((effect) => {
    isNext ||= effect.kind === 'changing' && effect.round > 0;
    if (!isNext || effect.kind !== 'feed') return [effect];
    isNext = false;
    return [];
  });
}

/** A device gets the inputs of the device that was fed before it. */
function sameShare(): Bug {
  const seen = new Map<string, Frame>();
  return {
    frame(frame) {
      if (frame.kind !== 'input') return [frame];
      const key = `${frame.epoch} ${frame.round} ${frame.microBatch}`;
      const former = seen.get(key);
      if (former === undefined) seen.set(key, frame);
      const isSameSize = former?.tensors?.[0]?.data.length === frame.tensors?.[0]?.data.length;
      return [former !== undefined && isSameSize ? { ...frame, tensors: former.tensors ?? [] } : frame];
    },
  };
}

function withReversedRows(frame: Frame): Frame {
  const tensors = (frame.tensors ?? []).map((tensor) => {
    const rows = Array.from({ length: tensor.data.length / rowLength }, (_, row) =>
      (tensor.data as Float32Array).slice(row * rowLength, (row + 1) * rowLength),
    );
    return { ...tensor, data: Float32Array.from(rows.reverse().flatMap((row) => [...row])) };
  });
  return { ...frame, tensors };
}

function withReversedTangents(frame: Frame): Frame {
  const [values, ...tangents] = frame.tensors ?? [];
  return values === undefined ? frame : { ...frame, tensors: [values, ...tangents.reverse()] };
}

function withoutSync(disk: Disk): Disk {
  const fileOf = (file: DiskFile): DiskFile => ({ ...file, sync: async () => {} });
  return {
    ...disk,
    create: async (path) => fileOf(await disk.create(path)),
    append: async (path) => fileOf(await disk.append(path)),
    syncFolder: async () => {},
  };
}

/** Writes wait until the folder was synced, and are done in the background. */
function nameFirst(disk: Disk): Disk {
  const waiting: (() => Promise<void>)[] = [];
  return {
    ...disk,
    async create(path) {
      const file = await disk.create(path);
      return {
        ...file,
        write: async (bytes) => void waiting.push(() => file.write(bytes)),
        sync: async () => {},
      };
    },
    async syncFolder(path) {
      await disk.syncFolder(path);
      const writes = waiting.splice(0);
      void (async () => {
        for (const write of writes) await write();
      })().catch(() => {}); // a disk that refuses is not this mistake
    },
  };
}
