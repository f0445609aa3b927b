// Applies the faults of a scenario to the world.

import { unreachable } from '../assert.ts';
import type { CoordinatorLife } from './coordinator-life.ts';
import { startDevice, stopDevice } from './device-life.ts';
import { coordinatorName, type Fault } from './scenario.ts';
import type { PathConditions } from './virtual-pipe.ts';
import type { VirtualProcess } from './virtual-process.ts';
import type { World } from './world.ts';

type Of<Kind extends Fault['kind']> = Extract<Fault, { kind: Kind }>;

/** Applies a fault now, and plans its end. */
export function happen(world: World, coordinator: CoordinatorLife, fault: Fault): void {
  const { afterFrames: _, delayMs: __, ...kind } = fault;
  world.witness.note('FAULT', JSON.stringify(kind));
  switch (fault.kind) {
    case 'kill':
      return kill(world, fault);
    case 'freeze':
      return freeze(world, processOf(world, coordinator, fault.process), fault.ms);
    case 'partition':
      return partition(world, fault);
    case 'reset':
      return world.network.reset(...fault.between);
    case 'damage':
      return world.network.damage(fault.from, fault.to);
    case 'drain':
      return fault.isByOwner ? stopDevice(world, fault.device) : coordinator.drain(fault.device);
    case 'impair':
      return impair(world, fault);
    case 'slow':
      return slow(world, fault);
    case 'join':
      return startDevice(world, fault.device);
    case 'kill-coordinator':
      return killCoordinator(world, coordinator, fault);
    case 'disk':
      world.disk.refuse(fault.code);
      return later(world, fault.ms, () => world.disk.refuse(undefined));
    default:
      return unreachable(fault);
  }
}

function later({ time }: World, delayMs: number, action: () => void): void {
  time.at(time.nowMs + delayMs, action);
}

function processOf(world: World, coordinator: CoordinatorLife, name: string): VirtualProcess | undefined {
  return name === coordinatorName ? coordinator.process : world.devices.get(name)?.process;
}

function kill(world: World, { device, isDark, isDataLost, returnsAfterMs, isForMemory = false }: Of<'kill'>): void {
  const known = world.devices.get(device);
  if (known === undefined || known.process.state === 'dead') return;
  const { process } = known;
  if (isForMemory) known.oomKillCount++;
  process.end();
  world.network.ended(process, { isDark, isDataLost });
  if (returnsAfterMs !== undefined) later(world, returnsAfterMs, () => startDevice(world, device));
}

function freeze(world: World, process: VirtualProcess | undefined, ms: number): void {
  if (process?.state !== 'running') return;
  process.freeze();
  world.network.frozen(process);
  later(world, ms, () => process.thaw());
}

function partition(world: World, { hosts, isOneWay, ms }: Of<'partition'>): void {
  const others = [...world.scenario.devices, coordinatorName].filter((host) => !hosts.includes(host));
  const pairs = hosts.flatMap((host) =>
    others.flatMap((other): [string, string][] =>
      isOneWay
        ? [[host, other]]
        : [
            [host, other],
            [other, host],
          ],
    ),
  );
  for (const [from, to] of pairs) world.network.cut(from, to);
  later(world, ms, () => {
    for (const [from, to] of pairs) world.network.fix(from, to);
  });
}

function impair({ network, scenario, ...rest }: World, { host, conditions, ms }: Of<'impair'>): void {
  const { windowBytes: _, ...usual } = scenario.network;
  const set = (values: PathConditions): void => {
    for (const other of [...scenario.devices, coordinatorName]) {
      if (other === host) continue;
      Object.assign(network.path(host, other), values);
      Object.assign(network.path(other, host), values);
    }
  };
  set(conditions);
  later({ network, scenario, ...rest }, ms, () => set(usual));
}

function slow(world: World, { device: name, factor, ms }: Of<'slow'>): void {
  const device = world.devices.get(name);
  if (device === undefined) return;
  device.slowness *= factor;
  later(world, ms, () => {
    device.slowness /= factor;
  });
}

function killCoordinator(
  world: World,
  coordinator: CoordinatorLife,
  { isPowerCut, restartsAfterMs }: Of<'kill-coordinator'>,
): void {
  const { process } = coordinator;
  if (process.state === 'dead') return;
  process.end();
  world.network.ended(process, { isDark: isPowerCut, isDataLost: isPowerCut });
  if (isPowerCut) world.disk.cutPower();
  later(world, restartsAfterMs, () => coordinator.start());
}
