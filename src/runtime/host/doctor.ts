// Checks what a device needs to take part: each finding is one line, fine or with the fix. Changes nothing; sends one
// multicast question.

import { X509Certificate } from 'node:crypto';
import { createServer } from 'node:net';
import { createComputeThread } from '../../engine/node/compute-thread.ts';
import { type DeviceFacts, deviceFacts } from '../../engine/node/host-node.ts';
import { Emitter } from '../../graph/emitter.ts';
import { toNumbers, wrap } from '../../graph/tensor.ts';
import { type AdvertisedAddress, ownAddresses } from './addresses.ts';
import { announce, discover } from './discovery.ts';
import { gpu } from './doctor-gpu.ts';
import { advertisedAddress, coordinatorReached } from './doctor-reach.ts';
import { authorityPath, loadAuthority } from './security/authority-store.ts';
import { readSecret, stateFolder } from './security/state-folder.ts';

/** One line of the report. */
export interface Finding {
  readonly check:
    | 'node'
    | 'engine'
    | 'gpu'
    | 'memory'
    | 'processor'
    | 'power'
    | 'interfaces'
    | 'port'
    | 'advertised'
    | 'coordinator'
    | 'mdns'
    | 'certificates'
    | 'clock';
  readonly state: 'fine' | 'warning' | 'wrong';
  /** What was found, and the fix if something is wrong. */
  readonly text: string;
}

export interface DoctorOptions {
  /** The port to try on each interface; 0: any. */
  readonly port: number;
  /** The address to listen on. Default: each of this machine's in turn. */
  readonly host?: string;
  /** What others are to dial. Default: not tried. */
  readonly advertised?: AdvertisedAddress;
  /** Whether to try the kernels of the GPU. Default: not. */
  readonly gpu?: boolean;
  /** A coordinator to reach. Default: none. */
  readonly join?: URL;
  /** Default: stateFolder(). */
  readonly folder?: string;
  /** Default: this machine's. */
  readonly addresses?: readonly string[];
  /** Default: this machine's. */
  readonly facts?: DeviceFacts;
  /** The wall clock, milliseconds since 1970. */
  readonly nowMs: number;
}

const oldestNode = [20, 19] as const;
const lowMemoryMiB = 512;
const lowBatteryPercent = 30;
const hotC = 90;
const multicastMs = 2_500;
/** The date of this version: an earlier wall clock is wrong. */
const releasedMs: number = Date.UTC(2026, 10, 1);

/** Examines this device. */
export async function examine(options: DoctorOptions): Promise<readonly Finding[]> {
  const { addresses = ownAddresses(), facts = deviceFacts(), host, port, advertised, join } = options;
  const listening = host === undefined ? ['127.0.0.1', ...addresses] : [host];
  return [
    node(facts.nodeVersion),
    await engine(),
    ...(options.gpu === true ? [await gpu()] : []),
    memory(facts.memoryMiB),
    processor(facts),
    ...power(facts),
    interfaces(addresses),
    await ports(listening, port),
    ...(advertised === undefined
      ? []
      : [
          { check: 'advertised', ...(await advertisedAddress(advertised, { host: host ?? '0.0.0.0', port })) } as const,
        ]),
    ...(join === undefined ? [] : [{ check: 'coordinator', ...(await coordinatorReached(join)) } as const]),
    await multicast(addresses),
    await certificates(options.folder ?? stateFolder()),
    clock(options.nowMs),
  ];
}

function node(version: string): Finding {
  const [major = 0, minor = 0] = version.split('.').map(Number);
  const isNew = major > oldestNode[0] || (major === oldestNode[0] && minor >= oldestNode[1]);
  return isNew
    ? { check: 'node', state: 'fine', text: `Node.js ${version}` }
    : {
        check: 'node',
        state: 'wrong',
        text: `Node.js ${version} is too old: install ${oldestNode.join('.')} or newer`,
      };
}

/** Computes −x on the engine that training would use. */
async function engine(): Promise<Finding> {
  try {
    const thread = await createComputeThread();
    try {
      const emitter = new Emitter();
      const inputs = [emitter.input('x', 'float32', [2])];
      emitter.append({ operator: 'Neg', domain: '', name: 'negate', inputs, outputs: ['y'], attributes: {} });
      const executable = await thread.compile(emitter.build('doctor', ['y']));
      const { y } = executable.run({ x: thread.upload(wrap('float32', [2], new Float32Array([1, 2]))) });
      const isRight = y !== undefined && toNumbers(await thread.take(y)).join() === '-1,-2';
      if (!isRight)
        return {
          check: 'engine',
          state: 'wrong',
          text: `${thread.name} computes wrong numbers: install its package again`,
        };
      const blocks =
        thread.blockSize === undefined ? 'plain kernels only' : `kernels for blocks of ${thread.blockSize} channels`;
      return thread.warning === undefined
        ? { check: 'engine', state: 'fine', text: `${thread.name}, ${blocks}` }
        : { check: 'engine', state: 'warning', text: `${thread.name}. ${textOf(thread.warning)}` };
    } finally {
      await thread.close();
    }
  } catch (error) {
    return { check: 'engine', state: 'wrong', text: textOf(error) };
  }
}

function memory(memoryMiB: number): Finding {
  return memoryMiB >= lowMemoryMiB
    ? { check: 'memory', state: 'fine', text: `${memoryMiB} MiB` }
    : {
        check: 'memory',
        state: 'warning',
        text: `${memoryMiB} MiB: small models only; raise the container's limit if there is one`,
      };
}

function processor({ coreCount, cpuModel, cpuQuota, temperatureC }: DeviceFacts): Finding {
  const cores = `${coreCount} ${coreCount === 1 ? 'core' : 'cores'} (${cpuModel})`;
  const quota =
    cpuQuota === undefined
      ? ''
      : `, of which this process may use ${cpuQuota.cores.toPrecision(2)} (${cpuQuota.periodMs} ms periods)`;
  const isHot = temperatureC !== undefined && temperatureC >= hotC;
  const heat = temperatureC === undefined ? '' : `, ${temperatureC.toFixed(0)} °C`;
  return isHot
    ? {
        check: 'processor',
        state: 'warning',
        text: `${cores}${quota}${heat}: it will slow down; let it cool, or use --max-cpu`,
      }
    : { check: 'processor', state: 'fine', text: `${cores}${quota}${heat}` };
}

/** Empty without a battery. */
function power({ battery }: DeviceFacts): readonly Finding[] {
  if (battery === undefined) return [];
  const text = `battery at ${battery.percent}%${battery.isDischarging ? ', discharging' : ''}`;
  const isLow = battery.isDischarging && battery.percent < lowBatteryPercent;
  return [
    isLow
      ? { check: 'power', state: 'warning', text: `${text}: plug the device in` }
      : { check: 'power', state: 'fine', text },
  ];
}

function interfaces(addresses: readonly string[]): Finding {
  return addresses.length > 0
    ? { check: 'interfaces', state: 'fine', text: `other machines reach this one at ${addresses.join(', ')}` }
    : {
        check: 'interfaces',
        state: 'warning',
        text: 'no network but this machine itself: connect a cable or Wi-Fi to use other devices',
      };
}

async function ports(hosts: readonly string[], port: number): Promise<Finding> {
  for (const host of hosts) {
    const failure = await tryToListen(host, port);
    if (failure !== undefined) {
      return {
        check: 'port',
        state: 'wrong',
        text: `port ${port} of ${host} cannot be listened on (${failure}): choose another with --port`,
      };
    }
  }
  const which = port === 0 ? 'free ports' : `port ${port}`;
  return {
    check: 'port',
    state: 'fine',
    text: `${which} can be listened on; a firewall may still keep other machines out`,
  };
}

function tryToListen(host: string, port: number): Promise<string | undefined> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message));
    server.listen(port, host, () => server.close(() => resolve(undefined)));
  });
}

/** Announces a service on the first interface and listens for it. */
async function multicast(addresses: readonly string[]): Promise<Finding> {
  const [host] = addresses;
  if (host === undefined)
    return { check: 'mdns', state: 'warning', text: 'not tried without a network: use --join with an address' };
  const url = `wss://${host}:9`;
  let problem = '';
  const type = 'asteroid-check';
  const announcement = await announce({ host, port: 9, url, type, onError: (message) => (problem = message) });
  try {
    const found = await discover({ timeoutMs: multicastMs, settleMs: 0, interfaces: [host], type });
    if (found.includes(url)) return { check: 'mdns', state: 'fine', text: `multicast is heard on ${host}` };
    const why = problem === '' ? '' : ` (${problem})`;
    return {
      check: 'mdns',
      state: 'warning',
      text: `multicast is not heard on ${host}${why}: use --join with the coordinator's address`,
    };
  } finally {
    await announcement.stop();
  }
}

async function certificates(folder: string): Promise<Finding> {
  try {
    if ((await readSecret(authorityPath(folder))) === undefined) {
      return {
        check: 'certificates',
        state: 'fine',
        text: `no cluster yet: the first run over the network makes one in ${folder}`,
      };
    }
    const { validTo } = new X509Certificate((await loadAuthority(folder)).certificate);
    return {
      check: 'certificates',
      state: 'fine',
      text: `this cluster's authority in ${folder} is valid until ${validTo}`,
    };
  } catch (error) {
    return { check: 'certificates', state: 'wrong', text: textOf(error) };
  }
}

function clock(nowMs: number): Finding {
  const shown = new Date(nowMs).toISOString().slice(0, 16);
  return nowMs >= releasedMs
    ? { check: 'clock', state: 'fine', text: `${shown} UTC` }
    : {
        check: 'clock',
        state: 'wrong',
        text: `${shown} UTC is in the past, and no certificate is valid then: set the clock`,
      };
}

function textOf(error: unknown): string {
  return (error instanceof Error ? error.message : String(error)).replace(/\.$/, '');
}
