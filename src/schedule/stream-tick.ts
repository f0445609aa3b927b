// The instructions of one device at one tick of a stream, where some rounds have fewer samples than others: a round's
// instructions are those of its own program, in the places that they have in the tick of whole rounds. Pure.

import { type DeviceProgram, type Instruction, isPass } from './program.ts';

/** A pass with what it receives and sends, an update with the derivatives that it takes, or a reduction alone. */
interface Group {
  /**
   * What it is in each program of the device; undefined for what does not depend on the samples: reductions, and
   * updates that take no derivatives.
   */
  readonly name: string | undefined;
  readonly offset: number;
  readonly instructions: readonly Instruction[];
}

/** Offsets of a device's instructions from the tick's round, the least and the most. */
export function offsetsOf({ instructions }: DeviceProgram): readonly [least: number, most: number] {
  const offsets = instructions.map(({ round = 0 }) => round);
  return [Math.min(0, ...offsets), Math.max(0, ...offsets)];
}

/** The ticks of a device. */
export class TickWriter {
  readonly #groups: readonly Group[];
  readonly #rests = new Map<DeviceProgram, ReadonlyMap<string, Group>>();

  /** `usual`: the device's program of whole rounds. */
  constructor(usual: DeviceProgram) {
    this.#groups = groupsOf(usual.instructions);
  }

  /**
   * The instructions at `tick` for rounds that are there. `restOf`: the device's program of a round of fewer samples;
   * undefined for a whole one.
   */
  at(
    tick: number,
    isThere: (round: number) => boolean,
    restOf: (round: number) => DeviceProgram | undefined,
  ): readonly Instruction[] {
    return this.#groups.flatMap(({ name, offset, instructions }) => {
      const round = tick + offset;
      if (!isThere(round)) return [];
      const rest = restOf(round);
      if (rest === undefined || name === undefined) return instructions;
      return this.#restGroups(rest).get(name)?.instructions ?? [];
    });
  }

  #restGroups(rest: DeviceProgram): ReadonlyMap<string, Group> {
    const known = this.#rests.get(rest);
    if (known !== undefined) return known;
    const groups = groupsOf(rest.instructions, true);
    const byName = new Map(groups.flatMap((group) => (group.name === undefined ? [] : [[group.name, group] as const])));
    this.#rests.set(rest, byName);
    return byName;
  }
}

/** Receives go with what follows them, sends with the pass before. `isRest`: of a round of fewer samples. */
function groupsOf(instructions: readonly Instruction[], isRest = false): Group[] {
  const groups: Group[] = [];
  let received: Instruction[] = [];
  for (const step of instructions) {
    const before = groups.at(-1);
    if (step.kind === 'receive') received.push(step);
    else if (step.kind === 'send' && before !== undefined)
      groups[groups.length - 1] = { ...before, instructions: [...before.instructions, step] };
    else {
      const isOfSamples = isPass(step) || (step.kind === 'update' && (isRest || received.length > 0));
      groups.push({
        name: isOfSamples ? nameOf(step) : undefined,
        offset: step.round ?? 0,
        instructions: [...received, step],
      });
      received = [];
    }
  }
  return groups;
}

function nameOf(step: Instruction): string {
  return `${step.kind} ${isPass(step) ? step.microBatch : ''} ${step.round ?? 0}`;
}
