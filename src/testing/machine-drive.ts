// The coordinator's state machine under test: driven with workers that answer at once, its effects written as one line
// each. No links, no clock.

import type { Plan } from '../cluster/cluster.ts';
import { initialState, step } from '../runtime/coordinator/machine.ts';
import type {
  Answer,
  MachineConfig,
  MachineEffect,
  MachineInput,
  MachineState,
} from '../runtime/coordinator/machine-types.ts';
import type { RoundResult } from '../runtime/protocol/messages.ts';

/** Three devices; a checkpoint after every second of five rounds. */
export const config: MachineConfig = {
  workerCount: 3,
  firstRound: 0,
  endRound: 5,
  checkpointEvery: 2,
  batchSize: 8,
  batchSizesToProfile: [1, 8],
  planGiven: false,
  learningRate: (round) => 0.1 / (round + 1),
  gradientScale: () => 1,
};

/** Layers 0 and 1 on a and b, layer 2 on c. */
export const plan: Plan = {
  planner: 'manual',
  schedule: '1f1b',
  batchSize: 8,
  microBatchSize: 4,
  microBatchCount: 2,
  stages: [
    { layers: [0, 2], devices: ['a', 'b'], samples: [2, 2], inFlight: 2 },
    { layers: [2, 3], devices: ['c'], samples: [4], inFlight: 1 },
  ],
  predicted: { roundMs: 1, samplesPerS: 8000, peakMemoryMiB: {} },
};

/** Drives the machine with workers that answer at once; effects are written as one line each. */
export class Drive {
  state: MachineState;
  readonly log: string[] = [];
  readonly #config: MachineConfig;
  readonly #ahead = new Map<string, number>();
  readonly #copied = new Set<number>();
  /** The planner. */
  planFor: (devices: readonly string[]) => Plan = () => plan;
  /** Replaces the honest answer to an effect; undefined: no answer. */
  answerOf: (device: string, message: string, honest: Answer) => Answer | undefined = (_device, _message, honest) =>
    honest;

  constructor(machineConfig: MachineConfig) {
    this.#config = machineConfig;
    this.state = initialState(machineConfig);
  }

  input(input: MachineInput): void {
    const [next, effects] = step(this.#config, this.state, input);
    this.state = next;
    for (const effect of effects) this.#log(effect);
    for (const effect of effects) this.#react(effect);
  }

  #log(effect: MachineEffect): void {
    switch (effect.kind) {
      case 'send':
        this.log.push(
          `${effect.message}→${effect.device}${effect.message === 'snapshot' && effect.control.withState ? ' with state' : ''}`,
        );
        break;
      case 'committed':
        this.log.push(`committed ${effect.round} loss ${effect.loss}`);
        break;
      case 'feed':
      case 'write-checkpoint':
        this.log.push(`${effect.kind} ${effect.round}`);
        break;
      case 'finish':
        this.log.push(`finish ${effect.round}${effect.stopped ? ' stopped' : ''}`);
        break;
      case 'fail':
        this.log.push(`fail: ${effect.message}`);
        break;
      case 'phase':
        this.log.push(`-- ${effect.phase}`);
        break;
      case 'deploy':
        this.log.push(
          `deploy ${effect.round} ${effect.moves.map(({ layers, from, to }) => `${from}→${to}[${layers}]`).join(' ')}`.trimEnd(),
        );
        break;
      case 'changing':
        this.log.push(
          `changing to ${effect.round} from ${effect.source}, ${effect.repeatedRounds} again: ${effect.change.cause}`,
        );
        break;
      case 'dismiss':
        this.log.push(`dismiss ${effect.device}: ${effect.reason}`);
        break;
      case 'repeated':
      case 'replicated':
        this.log.push(`${effect.kind} ${effect.round}`);
        break;
      default:
        this.log.push(effect.kind);
    }
  }

  #react(effect: MachineEffect): void {
    const answer = (device: string, message: string, honest: Answer): void => {
      const given = this.answerOf(device, message, honest);
      if (given !== undefined) this.input({ kind: 'answer', device, answer: given });
    };
    if (effect.kind === 'send-model')
      answer(effect.device, 'model', { kind: 'ready', listenUrl: `ws://${effect.device}` });
    else if (effect.kind === 'send-peers') answer(effect.device, 'connect', { kind: 'connected' });
    else if (effect.kind === 'plan') this.input({ kind: 'planned', plan: this.planFor(effect.devices), copyEvery: 1 });
    else if (effect.kind === 'write-checkpoint') this.input({ kind: 'checkpointed', round: effect.round });
    else if (effect.kind === 'deploy')
      for (const { name } of effect.members) answer(name, 'deploy', { kind: 'deployed' });
    else if (effect.kind === 'send') {
      const { device, message } = effect;
      if (message === 'measure') answer(device, message, { kind: 'measured', links: [] });
      if (message === 'profile') {
        answer(device, message, {
          kind: 'profiled',
          profile: { layers: [], times: { forwardMs: [], backwardMs: [] }, cached: false },
        });
      }
      // A round that is granted ahead is prepared when the one before has committed.
      if (message === 'round') {
        if (effect.control.replicate) this.#copied.add(effect.control.round);
        if (effect.control.round > this.state.round) this.#ahead.set(device, effect.control.round);
        else answer(device, message, { kind: 'prepared', result: result(effect.control.round, device) });
      }
      const ahead = this.#ahead.get(device);
      if (message === 'commit' && ahead === effect.control.round + 1) {
        this.#ahead.delete(device);
        answer(device, 'round', { kind: 'prepared', result: result(ahead, device) });
      }
      if (message === 'snapshot') answer(device, message, { kind: 'snapshot-end', round: effect.control.round });
    }
  }
}

/** What a device reports of a round: the loss falls by one a round. */
export function result(round: number, device: string): RoundResult {
  return {
    round,
    lossSum: device === 'c' ? 16 - round * 8 : 0,
    correctCount: 0,
    squaredNorm: 1,
    finite: true,
    roundMs: 1,
    busyMs: 1,
  };
}

/** All three devices have joined. */
export function gathered(drive: Drive): Drive {
  for (const device of ['a', 'b', 'c']) drive.input({ kind: 'joined', device });
  return drive;
}
