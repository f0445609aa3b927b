// A Program as text, for people, tests and errors: one line for each device. A pass is its letter and micro-batch, a
// piece of it has its layers, R is an AllReduce, U the update; +k is a round offset. Where transfers are shown, ? is a
// receive, ! a send, with the payload's letter, the samples if they are not all of the device's, and the other end; =
// is a result.
//
//   a: F0 F1 B0 B1 U                     a: ?X0 F0 !A0→b ?X1 F1 !A1→b ?G0←b B0 ?G1←b B1 U
//   b: F0 B0 F1 B1 U                     b: ?A0←a F0 B0 !G0→a ?A1←a F1 B1 !G1→a U

import { passes, payloads } from './passes.ts';
import type { DeviceProgram, Instruction, LayerRange, Program, SampleRange } from './program.ts';

export interface TextOptions {
  /** Whether sends and receives are shown. Default false. */
  readonly transfers?: boolean;
}

/** All devices of a program, in its order, with their names aligned. */
export function programText({ devices }: Program, options: TextOptions = {}): string {
  const width = Math.max(0, ...devices.map(({ device }) => device.length));
  return devices.map((device) => `${`${device.device}:`.padEnd(width + 1)} ${deviceText(device, options)}`).join('\n');
}

/** The instructions of one device on one line. */
export function deviceText(program: DeviceProgram, { transfers = false }: TextOptions = {}): string {
  return program.instructions
    .filter(({ kind }) => transfers || (kind !== 'send' && kind !== 'receive' && kind !== 'result'))
    .map((step) => instructionText(step, program.samples))
    .join(' ');
}

/** One instruction. `whole`: the samples of its device, which a transfer of all of them does not repeat. */
export function instructionText(step: Instruction, whole?: SampleRange): string {
  const offset = step.round === undefined ? '' : `${step.round < 0 ? '' : '+'}${step.round}`;
  if (step.kind === 'update') return `U${offset}`;
  if (step.kind === 'all-reduce') return `R${offset}${rangeText(step.layers)}`;
  if (step.kind === 'result') return `=${step.microBatch}${offset}`;
  if (step.kind === 'send' || step.kind === 'receive') {
    const isAll = whole !== undefined && step.samples[0] === whole[0] && step.samples[1] === whole[1];
    const what = `${payloads[step.payload].letter}${step.microBatch}${offset}${isAll ? '' : rangeText(step.samples)}`;
    if (step.kind === 'send') return `!${what}→${step.to}`;
    return step.from === null ? `?${what}` : `?${what}←${step.from}`;
  }
  const layers = 'layers' in step ? step.layers : undefined;
  return `${passes[step.kind].letter}${step.microBatch}${offset}${rangeText(layers)}`;
}

function rangeText(range: LayerRange | SampleRange | undefined): string {
  return range === undefined ? '' : `[${range[0]},${range[1]})`;
}
