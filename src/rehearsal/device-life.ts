// A device's life: its process calls the coordinator, serves, reconnects, and ends.

import { defined } from '../assert.ts';
import { RunError } from '../errors.ts';
import type { MeasuredProfile } from '../runtime/device/measure/measurement.ts';
import type { StagePort } from '../runtime/device/stage.ts';
import type { StageOptions } from '../runtime/device/stage-graphs.ts';
import { type Served, serveToTheEnd } from '../runtime/host/serve.ts';
import type { PeerNetwork } from '../runtime/worker/peers.ts';
import { runWorker } from '../runtime/worker/worker.ts';
import { batchSizesToProfile, coordinatorUrl } from './coordinator-life.ts';
import { createExactEngine } from './exact-engine.ts';
import { ExactForwardStage } from './exact-forward-stage.ts';
import { exactSequence } from './exact-model.ts';
import { ExactStage } from './exact-stage.ts';
import { ExactTangentStage } from './exact-tangent-stage.ts';
import type { StageWorld } from './exact-world.ts';
import { layerMemory } from './plans.ts';
import { coordinatorName, type Scenario } from './scenario.ts';
import type { VirtualProcess } from './virtual-process.ts';
import { crashed, type Device, exitProcess, startProcess, type World } from './world.ts';

/** Starts a device that has not been started, or has ended. */
export function startDevice(world: World, name: string): void {
  const known = world.devices.get(name);
  if (known !== undefined && known.process.state !== 'dead') return;
  const process = startProcess(world, name);
  const leave = new AbortController();
  const device: Device = known ?? {
    name,
    process,
    leave,
    slowness: defined(world.scenario.slowness[name], name),
    epoch: 0,
    oomKillCount: 0,
  };
  Object.assign(device, { process, leave });
  world.devices.set(name, device);
  world.witness.note(name, 'starts');
  const ended = (reason: string): void => {
    world.witness.note(name, 'ended:', reason);
    exitProcess(world, process);
  };
  serveToTheEnd(() => serve(world, device, process), {
    clock: process.clock,
    reconnectMs: world.scenario.reconnectMs,
    pause: (milliseconds) => new Promise((resolve) => void process.after(milliseconds, resolve)),
    isStopped: () => leave.signal.aborted,
    onLost: (reason) => world.witness.note(name, 'is alone:', reason),
  }).then(
    ({ reason }) => ended(reason),
    (error: unknown) => {
      if (!(error instanceof RunError)) crashed(world, `${name} crashed`, error);
      ended(String(error));
    },
  );
}

/** The owner of a device stops its worker (SIGINT). */
export function stopDevice(world: World, name: string): void {
  const device = world.devices.get(name);
  device?.process.run(() => device.leave.abort());
}

const drainMs = 15_000;
const stoppedReason = 'the worker was stopped by its owner';

async function serve(world: World, device: Device, process: VirtualProcess): Promise<Served> {
  const { network, scenario, witness, bug } = world;
  const link = await network.dial(process, coordinatorName, { url: coordinatorUrl });
  const { signal } = device.leave;
  // As the command does: a device that nobody releases leaves all the same.
  let cancel = (): void => {};
  const leave = (): void => {
    cancel = process.after(drainMs, () => void link.close(stoppedReason));
  };
  signal.addEventListener('abort', leave, { once: true });
  if (signal.aborted) {
    await link.close(stoppedReason);
    throw new RunError(stoppedReason);
  }
  const engine = createExactEngine(process);
  const end = await runWorker({
    name: device.name,
    coordinator: link,
    clock: process.clock,
    engine,
    leave: signal,
    profileCache: { read: async () => profileOf(world, device), write: async () => {} },
    createNetwork: async (_name, _token, onLink) => peerNetwork(world, process, onLink),
    createStage: async (options) => {
      const stageWorld: StageWorld = {
        engine,
        msPerSample: () => scenario.msPerSample * device.slowness,
        epoch: () => device.epoch,
        samplesIn: world.samplesIn,
        ...bug?.world,
        violate: (what) => process.state === 'running' && witness.violate(`${device.name}, ${what}`),
      };
      const stage = exactStage(options, stageWorld, scenario);
      return bug?.stage?.(stage, device.name) ?? stage;
    },
    readModel: ({ layerNames }) => exactSequence(layerNames.length),
  });
  signal.removeEventListener('abort', leave);
  cancel();
  await engine.close();
  await new Promise<void>((resolve) => process.takes(0, resolve)); // what waited for the engine lets go first
  if (engine.valueCount() > 0) witness.violate(`${device.name} ended with ${engine.valueCount()} values in its engine`);
  return { end, lost: end.lost === true };
}

function exactStage(options: StageOptions, world: StageWorld, { isInference, seed }: Scenario): StagePort {
  if (isInference) return new ExactForwardStage(options, world, seed);
  return options.training.forwardGradient === undefined
    ? new ExactStage(options, world)
    : new ExactTangentStage(options, world);
}

/** The profile of the exact model's layers on this device. */
function profileOf({ scenario }: World, { slowness }: Device): MeasuredProfile {
  const { layerCount, msPerSample } = scenario;
  const rows = (factor: number): number[][] =>
    batchSizesToProfile.map((size) => new Array<number>(layerCount).fill(size * msPerSample * slowness * factor));
  const layer = { outputBytes: 16, ...layerMemory, flops: 1, batchDependent: false };
  return {
    layers: Array.from({ length: layerCount }, (_, index) => ({ ...layer, name: `layer${index}` })),
    times: { forwardMs: rows(1), backwardMs: rows(2) },
    cached: true,
  };
}

function peerNetwork({ network }: World, process: VirtualProcess, onLink: Parameters<VirtualListen>[2]): PeerNetwork {
  const url = `virtual://${process.name}`;
  const stop = network.listen(url, process, onLink);
  const ending = new AbortController();
  return {
    url,
    connect: (peer) => network.dial(process, peer.name, { url: peer.url, abortSignal: ending.signal }),
    close: async () => {
      ending.abort();
      stop();
      await network.closeAll(process, 'the worker has ended');
    },
  };
}

type VirtualListen = World['network']['listen'];
