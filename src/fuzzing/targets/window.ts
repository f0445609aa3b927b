// What reaches the window: commands of a page, and lines of a run's folder, which its view takes in.

import assert from 'node:assert/strict';
import { InputError } from '../../errors.ts';
import type { Random } from '../../random.ts';
import { type Command, parseCommand } from '../../window/messages.ts';
import { recordedEvent, recordedRound } from '../../window/recorded.ts';
import { apply, emptyView, type View } from '../../window/view.ts';
import { damagedText, oneOf } from '../inputs.ts';
import type { Target } from '../target.ts';

const commands: readonly Command[] = [
  { id: 1, command: 'stop' },
  { id: 2, command: 'drain', device: 'a' },
  { id: 3, command: 'learning-rate', factor: 0.5 },
  { id: 4, command: 'what-if', change: { kind: 'link', between: ['a', 'b'], mbps: 10 } },
  { id: 5, command: 'what-if', change: { kind: 'slow', device: 'a', share: 0.5 } },
  { id: 6, command: 'invite' },
];

/** Commands, some damaged: what is taken is one of those that there are. */
export function commandTarget(): Target<string> {
  return {
    input(random: Random) {
      const text = JSON.stringify(oneOf(commands, random));
      return random.uniform() < 0.3 ? text : damagedText(text, random);
    },
    take(text) {
      const { id, command } = parseCommand(text);
      assert(Number.isSafeInteger(id) && id >= 0);
      assert(commands.some((known) => known.command === command));
    },
  };
}

const plan = {
  ...{ planner: 'by hand', schedule: '1f1b', batchSize: 4, microBatchSize: 2, microBatchCount: 2 },
  stages: [{ layers: [0, 2], devices: ['a'], samples: [2], inFlight: 1 }],
  predicted: { roundMs: 1, samplesPerS: 4000, peakMemoryMiB: { a: 1 } },
};
const lines: readonly object[] = [
  { event: 'joined', atMs: 1, device: 'a', cores: 2, memoryMiB: 100, engine: 'reference' },
  { event: 'deployment', atMs: 2, plan },
  { event: 'training', atMs: 3, firstRound: 0, endRound: 9, roundsPerEpoch: 3 },
  { event: 'left', atMs: 4, device: 'a', reason: 'gone' },
  { event: 'evaluated', atMs: 5, round: 1, accuracy: null, loss: 2, sampleCount: 3 },
  { event: 'drift', atMs: 6, factors: { a: 2 }, links: [{ between: ['a', 'b'], beforeMbps: 9, mbps: 1 }] },
  { round: 1, epoch: 0, loss: 0.5, samplesPerS: 10, lr: 0.1, accuracy: 0.5, atMs: 7 },
];

/** Lines of events.jsonl and metrics.jsonl, some damaged: the view takes in what is accepted. */
export function recordedTarget(): Target<unknown> {
  let view: View = emptyView('net');
  return {
    input(random: Random) {
      try {
        return JSON.parse(damagedText(JSON.stringify(oneOf(lines, random)), random)) as unknown;
      } catch {
        return undefined; // the log's reader refuses it before
      }
    },
    take(line) {
      if (view.atMs > 1e6) view = emptyView('net');
      const told = recordedEvent(line);
      if (told !== undefined) apply(view, told.event, told.atMs);
      const round = recordedRound(line);
      if (told === undefined && round === undefined) throw new InputError('This is no line of a run.');
      if (round === undefined) return;
      const { loss, ...others } = round;
      const metrics = { ...others, epoch: 0, loss: loss ?? Number.NaN };
      apply(view, { kind: 'round', metrics, endRound: 9, busyFraction: {}, work: {} }, 0);
      assert(view.curve.points.length <= 1024 && view.notes.length <= 200 && view.devices.length <= 2000);
    },
  };
}
