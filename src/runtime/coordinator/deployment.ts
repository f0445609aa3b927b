// How the model, layouts and state get to devices, and state to the disk: the first plan and those after a loss, what
// each device of a layout is sent, and checkpoints.

import { RunError } from '../../errors.ts';
import { byteLength } from '../../graph/tensor.ts';
import { program, restProgram } from '../../schedule/generate.ts';
import type { Program } from '../../schedule/program.ts';
import { scheduleOf } from '../../schedule/schedules.ts';
import type { PlanRequest } from '../knowledge/layout-planner.ts';
import { message } from '../protocol/messages.ts';
import { encodeSequence } from '../protocol/model-transfer.ts';
import { optimizerStateCount } from '../protocol/training-spec.ts';
import type { CoordinatorContext } from './context.ts';
import type { MachineEffect } from './machine-types.ts';
import type { WeightSource } from './options.ts';
import type { SavedEntry } from './snapshots.ts';

type Effect<Kind extends MachineEffect['kind']> = Extract<MachineEffect, { readonly kind: Kind }>;

/**
 * Bytes of state that a device is sent at once. More is read and handed over as its link takes it: devices must hear of
 * the coordinator meanwhile.
 */
const atOnceBytes = 2 ** 25;

function* weightsOf(
  weights: WeightSource,
  layers: readonly (readonly [first: number, end: number])[],
): Generator<SavedEntry> {
  for (const range of layers) yield* weights.entries(range);
}

export class Deployment {
  readonly #context: CoordinatorContext;
  #model: ReturnType<typeof encodeSequence> | undefined;
  /** The plan that is being made. */
  #request: PlanRequest | undefined;

  constructor(context: CoordinatorContext) {
    this.#context = context;
  }

  /** Sends a device all that it needs to know of the run. */
  sendModel(device: string): void {
    const { peerToken, subject } = this.#context.options;
    const { sequence, training, label } = subject;
    this.#model ??= encodeSequence(sequence);
    const { tensors, parameters, buffers, lengths } = this.#model;
    const layerNames = sequence.layers.map((layer) => layer.name);
    const labelShape = label.shape.slice(1);
    const specs = { parameters, buffers, ...(lengths.length === 0 ? {} : { lengths }) };
    const control = { ...specs, training, layerNames, labelShape, labelType: label.type, peerToken };
    this.#context.send(device, message('model', control, tensors));
  }

  /**
   * Asks for a plan, which comes back as 'planned' unless another is asked for meanwhile. Messages still on their way
   * about the layout before are ignored from now on.
   */
  async plan(request: PlanRequest): Promise<void> {
    const context = this.#context;
    context.epoch = context.state.epoch;
    context.feed.stop();
    this.#request = request;
    const isOver = (): boolean => this.#request !== request || context.state.phase !== 'planning';
    try {
      const plan = await context.planner.plan(request, isOver);
      if (plan === undefined || isOver()) return;
      context.input({ kind: 'planned', plan, copyEvery: context.planner.copyEvery(plan, request.devices) });
    } catch (error) {
      if (!isOver()) context.abort(error);
    }
  }

  /**
   * Announces a layout to every member, and sends those who get layers from no other device what the last checkpoint
   * has of them.
   */
  deploy({ plan, epoch, round, moves, copies, members }: Effect<'deploy'>): void {
    const context = this.#context;
    context.epoch = epoch;
    const programFor = (sampleCount: number): Program => restProgram(plan, sampleCount);
    context.feed.begin(program(plan), programFor);
    context.results?.begin(programFor, round);
    context.planner.begin(plan, context.state.copyEvery);
    context.observe({ kind: 'deployment', plan });
    context.snapshots.begin(plan);
    const peers = members.map(({ name, listenUrl }) => ({ name, url: listenUrl }));
    const frozen = copies.filter(({ layers }) => context.snapshots.frozen(layers).length > 0);
    for (const { name } of members) {
      const layers = moves.filter(({ from, to }) => from === null && to === name).map((move) => move.layers);
      const { weights } = context.options;
      const { window } = context.options.machine;
      const deploy = {
        ...{ plan, round, moves, peers, ...(window === undefined ? {} : { window }) },
        ...(frozen.length === 0 ? {} : { frozen }),
      };
      const announce = (stateCount: number): void => context.send(name, message('deploy', { ...deploy, stateCount }));
      if (weights !== undefined) {
        announce(layers.reduce((sum, range) => sum + weights.count(range), 0));
        void this.#sendInTurn(name, weightsOf(weights, layers));
        continue;
      }
      const entries = [
        ...layers.flatMap((range) => context.snapshots.entries(range, round)),
        ...frozen.flatMap(({ to, layers: range }) => (to === name ? context.snapshots.frozen(range) : [])),
      ];
      announce(entries.length);
      if (entries.reduce((sum, { value }) => sum + byteLength(value), 0) > atOnceBytes) {
        void this.#sendInTurn(name, entries);
        continue;
      }
      for (const { role, name: entry, value } of entries)
        context.send(name, message('state', { role, name: entry }, [value]));
    }
  }

  /** Sends a device state as fast as its link takes it, until another layout is announced. */
  async #sendInTurn(device: string, entries: Iterable<SavedEntry>): Promise<void> {
    const context = this.#context;
    const { epoch } = context;
    try {
      for (const { role, name, value } of entries) {
        await context.sendInTurn(device, message('state', { role, name }, [value], { epoch }));
        if (context.epoch !== epoch || !context.links.has(device)) return;
      }
    } catch (error) {
      context.abort(error);
    }
  }

  /** Announces a change of the layout, with how much state moves. */
  changing({ change: { cause, lost }, plan, round, repeatedRounds, source, moves }: Effect<'changing'>): void {
    const { planner, options } = this.#context;
    const copies = 1 + optimizerStateCount(options.subject.training);
    let movedBytes = 0;
    for (const { layers } of moves)
      for (let layer = layers[0]; layer < layers[1]; layer++) movedBytes += copies * planner.layerBytes(layer);
    const movedMiB = movedBytes / 2 ** 20;
    this.#context.observe({ kind: 'recovering', cause, lost, plan, round, repeatedRounds, source, movedMiB });
  }

  /** Hands the collected state to whoever keeps it; ends the run if some of it is missing. */
  writeCheckpoint(round: number): void {
    const { snapshots, options } = this.#context;
    const { state } = snapshots;
    const missing = snapshots.missing();
    if (missing.length > 0) {
      const names = missing.slice(0, 3).join(', ');
      return this.#context.abort(new RunError(`Training ended: nobody sent ${names} after round ${round}.`));
    }
    const { plan } = this.#context.state;
    // Where rounds overlap, the state counts from here on (changes.ts).
    if (plan !== undefined && scheduleOf(plan.schedule).isStream) snapshots.saved(round, state);
    options.hooks.onCheckpoint(round, state).then(
      (isSafe) => {
        snapshots.saved(round, state);
        if (isSafe) this.#context.durableRound = round;
        this.#context.input({ kind: 'checkpointed', round });
      },
      (error: unknown) => this.#context.abort(error),
    );
  }
}
