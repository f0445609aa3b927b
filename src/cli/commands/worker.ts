// asteroid worker: offers this device to a coordinator.

import { readFile } from 'node:fs/promises';
import { createInterface } from 'node:readline/promises';
import { text } from 'node:stream/consumers';
import { setTimeout } from 'node:timers/promises';
import type { Command } from 'commander';
import { systemClock } from '../../clock.ts';
import { createComputeThread } from '../../engine/node/compute-thread.ts';
import { searchForGarbageLess } from '../../engine/node/host-node.ts';
import { createProcessClock } from '../../engine/node/work-clock.ts';
import { isOnGpu } from '../../engine/onnxruntime-gpu.ts';
import { InputError } from '../../errors.ts';
import { checkListening, isWildcard, parseAdvertised } from '../../runtime/host/addresses.ts';
import { findCoordinator } from '../../runtime/host/discovery.ts';
import { type Joined, type JoinOptions, joinRun, parseUrl } from '../../runtime/host/join.ts';
import { joinCodeVariable, readPlaceToJoin } from '../../runtime/host/local-workers.ts';
import { type ProfiledEngine, startProfile } from '../../runtime/host/profile-apart.ts';
import { profileCache } from '../../runtime/host/profile-cache.ts';
import { createDeviceStore } from '../../runtime/host/security/device-store.ts';
import { stateFolder } from '../../runtime/host/security/state-folder.ts';
import { createStageFiles } from '../../runtime/host/stage-files.ts';
import { isListening, serveRuns } from '../../runtime/host/wait-for-runs.ts';
import { createWeightFiles } from '../../runtime/host/weight-files.ts';
import type { WorkerEnd } from '../../runtime/worker/options.ts';
import { isLoopback } from '../../transport/admission.ts';
import { deviceName, engineName, positive } from '../flag-values.ts';
import { createOutput, interruptedExitCode, interruptSignal, type Output } from '../output.ts';

interface WorkerCommandOptions {
  readonly join?: string;
  readonly code?: string;
  readonly codeFile?: string;
  readonly name?: string;
  readonly host?: string;
  readonly port?: string;
  readonly advertise?: string;
  readonly threads: string;
  readonly engine: string;
  readonly device: string;
  readonly maxCpu?: string;
  readonly maxMemory?: string;
  readonly courteous?: boolean;
  readonly insecure?: boolean;
  readonly wait?: boolean;
  readonly managed?: string;
  readonly json?: boolean;
}

/** How long a worker tries to reconnect to a lost coordinator. */
const reconnectMs = 60_000;

/** How long to look for a coordinator. */
const findMs = 5_000;

/** Adds the command. */
export function addWorker(program: Command): Command {
  return program
    .command('worker')
    .description('offer this device to a training run')
    .option(
      '--join <URL>',
      'the address that asteroid train printed, such as wss://192.168.1.20:7700 ' +
        '(default: the one that answers on this network)',
    )
    .option(
      '--code <CODE>',
      `the join code that it printed (better, since others see arguments: ${joinCodeVariable}, or typed when asked)`,
    )
    .option('--code-file <FILE>', 'a file with the join code; - reads it from stdin')
    .option('--name <NAME>', 'how this device is called (default: its host name)')
    .option(
      '--host <ADDRESS>',
      'the address to listen on for peers; 0.0.0.0 and :: are all of this device ' +
        '(default: the one that leads to the coordinator)',
    )
    .option('--port <N>', 'the port to listen on for peers (default: that of --advertise, or any free one)')
    .option(
      '--advertise <ADDRESS[:PORT]>',
      'what peers dial, where a router, a container or a tunnel leads to this device (default: the address and port ' +
        'listened on; with --port, the address that the coordinator sees)',
    )
    .option('--threads <N>', 'compute threads', '1')
    .option('--engine <NAME>', 'onnxruntime | reference', 'onnxruntime')
    .option('--device <NAME>', 'compute on the cpu, on the gpu (through WebGPU), or auto: on what is faster', 'cpu')
    .option('--max-cpu <PERCENT>', 'of the time that its threads may compute (default: 100)')
    .option('--max-memory <MIB>', 'memory that this worker may take, its process included (default: all)')
    .option('--courteous', 'step back while others use this machine')
    .option('--insecure', 'allow unencrypted links beyond this machine')
    .option('--wait', 'wait for a run, and when it is over for the next')
    .option(
      '--managed <COUNT>',
      'one of COUNT workers that a coordinator started on this machine, tells whom to join, and ends on Ctrl-C',
    )
    .addHelpText('after', '\nExample:\n  $ asteroid worker --join wss://192.168.1.20:7700\n  Join code: …')
    .action((options: WorkerCommandOptions) => work(options));
}

async function work(options: WorkerCommandOptions): Promise<void> {
  searchForGarbageLess();
  const output = createOutput(options);
  const maxMemoryMiB = megabytes(options.maxMemory);
  const engine = engineOptions(options);
  const place = placeOptions(options);
  let { device } = engine;
  const isManaged = options.managed !== undefined;
  // The coordinator of a managed worker gets the same Ctrl-C from the terminal and ends its workers in good order.
  const signal = isManaged ? ignoreInterrupts() : interruptSignal(output, 'Leaving …');
  // A worker that waits to be told whom to join starts its engine meanwhile.
  const onDetour = (kernel: string): void =>
    output.observe({ kind: 'warning', message: `computed on the CPU, not on the GPU: ${kernel}.` });
  const starting = isManaged ? createComputeThread({ ...engine, onDetour }) : undefined;
  starting?.catch(() => {}); // told when it has joined
  const told = isManaged ? await readPlaceToJoin(process.stdin) : undefined;
  if (isManaged && told === undefined) process.exit();
  const joinCode = told === undefined ? codeOf(options, signal) : () => Promise.resolve(told.joinCode);
  const join = async () =>
    joinRun({
      url: told?.url ?? options.join ?? (await find(output, signal, options.host)),
      maxMemoryMiB,
      joinCode,
      signal,
      clock: systemClock,
      insecure: told?.insecure ?? options.insecure === true,
      createEngine: async () => {
        const made = await (starting ?? createComputeThread({ ...engine, onDetour }));
        device = isOnGpu(made.name) ? 'gpu' : 'cpu';
        tellChoice(made.choice, device, output);
        return made;
      },
      startProfile: (job, onProgress) => startProfile(job, { ...engine, device }, onProgress),
      // What a GPU does takes no processor time.
      ...(engine.device === 'cpu' ? { processWork: createProcessClock(engine) } : {}),
      ...(options.name === undefined ? {} : { name: options.name }),
      ...place,
      profileCache: profileCache(cacheName(options.name, engine)),
      stageStore: createStageFiles(),
      weightFiles: createWeightFiles(),
      // Workers that a coordinator starts are new each time.
      ...(isManaged ? {} : { store: createDeviceStore(stateFolder()), reconnectMs }),
      onWarning: (message) => output.observe({ kind: 'warning', message }),
      onJoined: (name, joined) => showJoined(name, joined, isManaged, output),
      onLost: (reason) => {
        output.json({ event: 'lost', reason });
        if (!output.isJson) output.terminal.print(`Lost the coordinator (${reason}); trying again …`);
      },
    });
  if (options.wait === true) await waitForRuns(options, { join, signal, output });
  else await serveOnce({ join, signal, output });
}

/** What it computes on, where that was chosen here. */
function tellChoice(choice: string | undefined, device: string, output: Output): void {
  if (choice === undefined) return;
  output.json({ event: 'device', device, reason: choice });
  if (!output.isJson) output.terminal.print(choice);
}

/** What serves runs. */
interface Service {
  readonly signal: AbortSignal;
  readonly output: Output;
  join(): Promise<WorkerEnd>;
}

async function serveOnce({ join, signal, output }: Service): Promise<void> {
  const end = await join().catch((error: unknown) => {
    if (!signal.aborted) throw error;
    return { clean: false, reason: 'interrupted' }; // while it looked for the coordinator, or connected
  });
  showEnd(end, output);
  process.exitCode = signal.aborted ? interruptedExitCode : end.clean ? 0 : 1;
}

function showEnd({ clean, reason }: WorkerEnd, output: Output): void {
  output.json({ event: 'ended', clean, reason });
  if (!output.isJson) output.terminal.print(`Ended: ${reason}.`);
}

/** Serves one run after another. */
async function waitForRuns({ join: url }: WorkerCommandOptions, { join, signal, output }: Service): Promise<void> {
  if (url !== undefined) parseUrl(url);
  await serveRuns({
    ...{ join, signal, onEnd: (end) => showEnd(end, output) },
    absence: async () => (url === undefined || (await isListening(url)) ? undefined : `nothing listens at ${url}`),
    pause: (milliseconds) => setTimeout(milliseconds, undefined, { signal }).catch(() => {}),
    onWaiting: (reason) => {
      output.json({ event: 'waiting', reason });
      if (!output.isJson) output.terminal.print(`Waiting for a run (${reason}) …`);
    },
  });
  process.exitCode = interruptedExitCode;
}

/** The flags of the engine. Throws InputError. */
function engineOptions({
  engine,
  device,
  threads,
  maxCpu,
  courteous,
  managed,
}: WorkerCommandOptions): Required<ProfiledEngine> {
  return {
    engine: engineName(engine),
    device: deviceName(device),
    threadCount: positive('--threads', threads),
    maxCpu: fractionOf(maxCpu),
    isCourteous: courteous === true,
    workerCount: managed === undefined ? 1 : positive('--managed', managed),
  };
}

/** Tells apart the profiles that were measured on this machine under other names and limits. */
function cacheName(name = '', { workerCount, maxCpu, isCourteous }: Required<ProfiledEngine>): string {
  const shared = workerCount > 1 ? ` of ${workerCount}` : '';
  return `${name}${shared}${maxCpu < 1 ? ` at ${maxCpu}` : ''}${isCourteous ? ' courteous' : ''}`;
}

function showJoined(name: string, joined: Joined, isManaged: boolean, output: Output): void {
  const { host, port, seenAs, encrypted } = joined;
  output.json({ event: 'joined', name, ...joined });
  if (output.isJson) return;
  output.terminal.print(`Joined as ${name}; waiting for work. Ctrl-C leaves.`);
  if (isManaged || isLoopback(host)) return;
  const links = encrypted ? 'encrypted' : 'INSECURE: anyone on the network can read and change what travels';
  const place = port === undefined ? host : `port ${port} of ${host}`;
  output.terminal.print(`Other devices dial this one at ${place} (another: --advertise); links are ${links}.`);
  if (seenAs !== undefined && seenAs !== host)
    output.terminal.print(
      `The coordinator sees it as ${seenAs}: a router or a host of containers is between. Devices that do not reach ` +
        `${host} meet this one over the coordinator; with a port that leads here, --port N --advertise ${seenAs}:N ` +
        'is faster.',
    );
}

function ignoreInterrupts(): AbortSignal {
  process.on('SIGINT', () => {});
  return new AbortController().signal;
}

/** The coordinator on the local network. */
async function find(output: Output, signal: AbortSignal, host: string | undefined): Promise<string> {
  if (!output.isJson) output.terminal.live(['Looking for a coordinator on this network …']);
  const interfaces = host === undefined || isWildcard(host) ? undefined : [host];
  const url = await findCoordinator(findMs, signal, interfaces);
  if (!output.isJson) output.terminal.live([]);
  output.json({ event: 'found', url });
  if (!output.isJson) output.terminal.print(`Found ${url}.`);
  return url;
}

/** Where to listen for peers, and what they dial. Throws InputError. */
function placeOptions({ host, port, advertise }: WorkerCommandOptions): Partial<JoinOptions> {
  if (host !== undefined) checkListening(host);
  return {
    ...(host === undefined ? {} : { host }),
    ...(port === undefined ? {} : { port: portOf(port) }),
    ...(advertise === undefined ? {} : { advertised: parseAdvertised(advertise) }),
  };
}

function portOf(text: string): number {
  const value = Number(text);
  if (!Number.isInteger(value) || value < 1 || value > 65_535)
    throw new InputError(`--port ${text} must be a whole number from 1 to 65535.`);
  return value;
}

function megabytes(text: string | undefined): number {
  if (text === undefined) return Number.POSITIVE_INFINITY;
  const value = Number(text);
  if (!Number.isInteger(value) || value < 64)
    throw new InputError(`--max-memory ${text} must be a whole number of MiB, at least 64.`);
  return value;
}

/** "50" and "50%" are a half. */
function fractionOf(text: string | undefined): number {
  const value = text === undefined ? 100 : Number(text.replace(/%$/, ''));
  if (!(value >= 5 && value <= 100)) throw new InputError(`--max-cpu ${text} must be a percentage from 5 to 100.`);
  return value / 100;
}

/** Where the join code comes from; a person is asked only when it is needed. */
function codeOf({ code, codeFile }: WorkerCommandOptions, signal: AbortSignal): () => Promise<string> {
  const given = code ?? process.env[joinCodeVariable];
  delete process.env[joinCodeVariable];
  // Arguments are visible to all users in the list of processes; hide them where the system allows it.
  if (code !== undefined) process.title = 'asteroid worker';
  if (codeFile !== undefined) return () => readCode(codeFile);
  return given === undefined ? () => askCode(signal) : () => Promise.resolve(given);
}

async function readCode(file: string): Promise<string> {
  try {
    return (file === '-' ? await text(process.stdin) : await readFile(file, 'utf8')).trim();
  } catch (error) {
    throw new InputError(
      `--code-file ${file} cannot be read: ${error instanceof Error ? error.message : String(error)}.`,
    );
  }
}

async function askCode(signal: AbortSignal): Promise<string> {
  if (!process.stdin.isTTY)
    throw new InputError(`The join code is missing: give --code-file, or set ${joinCodeVariable}.`);
  const lines = createInterface({ input: process.stdin, output: process.stderr });
  // readline handles Ctrl-C itself: pass it on.
  lines.on('SIGINT', () => process.kill(process.pid, 'SIGINT'));
  try {
    return await lines.question('Join code: ', { signal });
  } finally {
    lines.close();
  }
}
