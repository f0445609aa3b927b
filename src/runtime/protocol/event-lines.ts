// The events of a run that are one line on the terminal, and change nothing else that is shown.

import { roundText } from '../../cluster/draw.ts';
import { counted, duration, memory } from '../../measures.ts';
import type { RunEvent } from './events.ts';

type Event<Kind extends RunEvent['kind']> = Extract<RunEvent, { readonly kind: Kind }>;

/** Label and text of an event that is one line and changes nothing else that is shown; undefined for the others. */
export function lineOf(event: RunEvent): readonly [label: string, text: string] | undefined {
  switch (event.kind) {
    case 'cool-down':
      return ['Devices', coolDownText(event)];
    case 'suspected':
      return ['Silent', suspectedText(event)];
    case 'checked':
      return ['Checked', checkedText(event)];
    case 'drift':
      return ['Drift', driftText(event)];
    case 'capacities':
      return ['Capacity', capacitiesText(event)];
    case 'overdue':
      return ['Overdue', overdueText(event)];
    case 'recovered':
      return ['Resumed', `at round ${event.round}, after ${event.seconds.toFixed(1)} s`];
    case 'stream':
      return ['Stream', streamText(event)];
    case 'reserve-ready':
      return ['Prepared', `for the loss of any one device, after ${event.seconds.toFixed(0)} s`];
    case 'best':
      return ['Best', `${event.metric} ${event.value.toPrecision(4)} so far, after round ${event.round}`];
    case 'early-stop':
      return ['Ends early', earlyText(event)];
    case 'note':
      return ['Note', event.message];
    case 'relayed':
      return ['Links', relayedText(event)];
    case 'activation-bits':
      return ['Bits', `${event.from} → ${event.to} in ${event.bits} bits`];
    case 'asked':
      return ['Window', askedText(event)];
    case 'learning-rate':
      return ['Rate', `${event.factor} times the schedule's learning rate from round ${event.round} on`];
    default:
      return undefined;
  }
}

function earlyText({ metric, value, testsSince }: Event<'early-stop'>): string {
  return `${counted(testsSince, 'test')} without a better ${metric} than ${value.toPrecision(4)}`;
}

function askedText({ what, device = '', factor = 1 }: Event<'asked'>): string {
  switch (what) {
    case 'stop':
      return 'somebody asked to stop after this round';
    case 'drain':
      return `somebody asked to go on without ${device}`;
    case 'learning-rate':
      return `somebody asked for ${factor} times the schedule's learning rate`;
  }
}

/** What follows a loss or a change, in a sentence. */
export function recoveringText({
  cause,
  plan,
  round,
  repeatedRounds,
  source,
  movedMiB,
}: Omit<Event<'recovering'>, 'kind' | 'lost'>): string {
  const deviceCount = new Set(plan.stages.flatMap(({ devices }) => devices)).size;
  const repeated =
    repeatedRounds === 0
      ? 'no round is lost'
      : `${counted(repeatedRounds, 'round')} from ${round} on ${repeatedRounds === 1 ? 'is' : 'are'} computed again`;
  const from = source === 'checkpoint' ? ', from the last checkpoint' : '';
  const moved = movedMiB === 0 ? '' : `, ${memory(movedMiB)} of weights move`;
  return `${cause}: continuing with ${counted(deviceCount, 'device')}; ${repeated}${from}${moved}`;
}

/** What it means for a device that its system killed its process for lack of memory. */
export function memoryLoweredText({ device, fromMiB, toMiB }: Event<'memory-lowered'>): string {
  const consequence =
    toMiB === 0
      ? 'it gets no work in this run'
      : `plans count on ${memory(toMiB)} of it from now on, instead of ${memory(fromMiB)}`;
  return `${device} was killed by its system for lack of memory: ${consequence}`;
}

function streamText({ round, staleness, correction }: Event<'stream'>): string {
  const [first = 0] = staleness;
  if (staleness.every((own) => own === 0)) return `from round ${round} on rounds follow each other`;
  const behind = staleness.every((own) => own === first)
    ? counted(first, 'round')
    : `${staleness.join(', ')} rounds, by stage`;
  const remedy = correction === undefined ? '' : `; --staleness-correction ${correction} makes up for it`;
  return `from round ${round} on rounds overlap, with weights that lag behind by ${behind}${remedy}`;
}

function relayedText({ between: [one, other] }: Event<'relayed'>): string {
  return (
    `${one} ↔ ${other} over this machine, since neither reaches the other: ` +
    'with --port and --advertise a worker could be reached, a browser cannot (asteroid doctor)'
  );
}

function coolDownText({ device, departureCount, seconds }: Event<'cool-down'>): string {
  const often = departureCount === 1 ? 'once' : `${departureCount} times`;
  return `${device} has left ${often}: it gets no work for at least ${duration(seconds)}`;
}

function suspectedText({ device, silentMs, deadAfterMs }: Event<'suspected'>): string {
  const seconds = (ms: number): string => `${(ms / 1000).toFixed(1)} s`;
  return `${device} has not been heard for ${seconds(silentMs)}; it is given up after ${seconds(deadAfterMs)}`;
}

function checkedText({ roundMs, plannedMs }: Event<'checked'>): string {
  const planned = plannedMs === 0 ? '' : `, ${roundText(plannedMs)} as planned`;
  return `a round takes ${roundText(roundMs)} by what its stages took so far${planned}`;
}

function capacitiesText({ capacities, isKept }: Event<'capacities'>): string {
  const each = Object.entries(capacities).map(([device, factor]) => `${device} ${factor.toFixed(2)}`);
  const what = isKept ? 'layers stay where they are' : 'layers are shared out anew';
  return `${each.join(', ')} (times as long as the central node takes): ${what}`;
}

function overdueText({ round, seconds }: Event<'overdue'>): string {
  const what = `the gradients of round ${round} have not come for ${seconds.toFixed(1)} s`;
  return `${what}: all devices are asked whether they live`;
}

function driftText({ factors, links }: Event<'drift'>): string {
  const slower = Object.entries(factors).map(
    ([device, factor]) => `${device} takes ${factor.toFixed(2)} times as long as profiled`,
  );
  const changed = links.map(
    ({ between, mbps, beforeMbps }) =>
      `${between.join(' — ')} carries ${mbps.toFixed(1)} Mbps, before ${beforeMbps.toFixed(1)}`,
  );
  return [...slower, ...changed].join(', ');
}
