// asteroid lab: a shaped virtual cluster on one Linux machine.

import { availableParallelism } from 'node:os';
import type { Command } from 'commander';
import { parseCluster } from '../../cluster/validate.ts';
import { computeEnvironment } from '../../engine/node/host-node.ts';
import { InputError } from '../../errors.ts';
import { findLab, type Lab, type LabSettings, makeLab, removeLab } from '../../lab/lab.ts';
import { type LabEnd, labCommands, runIn, runOn } from '../../lab/run.ts';
import { stateFolder } from '../../runtime/host/security/state-folder.ts';
import { readText } from '../files.ts';
import { createOutput, interruptedExitCode, type Output } from '../output.ts';
import { counted } from '../terminal.ts';

interface LabCommandOptions {
  readonly name: string;
  readonly network: string;
  readonly priority: string;
  readonly json?: boolean;
}

/** Adds the command. */
export function addLab(program: Command): Command {
  return program
    .command('lab')
    .description('a cluster with shaped links and processor quotas on this Linux machine (needs root)')
    .argument('<action>', 'up | run | exec | down')
    .argument('[words...]', 'up: the file of the cluster; run: what to run; exec: a device and a program')
    .option('--name <NAME>', 'of the lab: several may be up at once', 'lab')
    .option(
      '--network <FORM>',
      'links: each pair of devices has a link of its own | switch: the links of a device share its port',
      'links',
    )
    .option('--priority <P>', 'normal | high: before other work on this machine', 'normal')
    .addHelpText(
      'after',
      `
A device gets the cores that the cluster's file gives it (cores: 0.35), else a share by the speed of its kind,
and the memory that the file gives it.

Examples:
  $ asteroid lab up clusters/asteroid-d.yaml
  $ asteroid lab run -- train --model digits --data mnist --optimizer adam --lr 0.002
  $ asteroid lab exec nano-1 -- ip address
  $ asteroid lab down
  $ asteroid lab run clusters/asteroid-d.yaml -- train --model digits --data mnist --steps 50`,
    )
    .action((action: string, words: readonly string[], options: LabCommandOptions) => act(action, words, options));
}

async function act(action: string, words: readonly string[], options: LabCommandOptions): Promise<void> {
  const output = createOutput(options);
  switch (action) {
    case 'up':
      return up(words, options, output);
    case 'down':
      return down(words, options, output);
    case 'run':
      return run(words, options, output);
    case 'exec':
      return execute(words, options);
    default:
      throw new InputError(`asteroid lab ${action} does not exist: use up, run, exec or down.`);
  }
}

async function up(words: readonly string[], options: LabCommandOptions, output: Output): Promise<void> {
  const [file, ...more] = words;
  if (file === undefined || more.length > 0)
    throw new InputError('asteroid lab up takes one file of a cluster: asteroid lab up CLUSTER.yaml.');
  await toItsEnd(async (isInterrupted) => {
    const lab = await make(file, options);
    if (isInterrupted()) await removeLab(options.name, stateFolder());
    else show(lab, output);
  });
}

async function make(file: string, options: LabCommandOptions): Promise<Lab> {
  return makeLab(parseCluster(await readText(file), file), settingsOf(options), stateFolder());
}

/** Runs work that a signal must not interrupt: the work can ask whether one came, and the exit code reports it. */
async function toItsEnd(work: (isInterrupted: () => boolean) => Promise<void>): Promise<void> {
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
  let isInterrupted = false;
  const note = (): void => {
    isInterrupted = true;
  };
  for (const signal of signals) process.on(signal, note);
  try {
    await work(() => isInterrupted);
  } finally {
    for (const signal of signals) process.off(signal, note);
  }
  if (isInterrupted) process.exitCode = interruptedExitCode;
}

async function down(words: readonly string[], { name }: LabCommandOptions, output: Output): Promise<void> {
  if (words.length > 0) throw new InputError(`asteroid lab down takes no ${words[0]}: name the lab with --name.`);
  const removed = await removeLab(name, stateFolder());
  output.json({ event: 'lab-down', name, removed });
  if (!output.isJson) output.terminal.print(removed ? `The lab "${name}" is gone.` : `There was no lab "${name}".`);
}

/** `run -- train …` in the lab that is up, or `run CLUSTER.yaml -- train …` in one made for it. */
async function run(words: readonly string[], options: LabCommandOptions, output: Output): Promise<void> {
  const [file, rest] = labCommands.includes(words[0] ?? '') ? [undefined, words] : [words[0], words.slice(1)];
  if (!labCommands.includes(rest[0] ?? '')) {
    throw new InputError(
      'asteroid lab run takes train, infer or serve: asteroid lab run -- train --model … --data …; ' +
        'other programs: asteroid lab exec.',
    );
  }
  const runThere = (lab: Lab): Promise<LabEnd> =>
    runIn(lab, [...rest, ...(output.isJson && !rest.includes('--json') ? ['--json'] : [])], {
      environment: computeEnvironment(process.env, 0), // its devices stand for boards
      onWarning: (message) => output.observe({ kind: 'warning', message }),
    });
  if (file === undefined) {
    process.exitCode = (await runThere(await findLab(options.name, stateFolder()))).code;
    return;
  }
  await toItsEnd(async (isInterrupted) => {
    const lab = await make(file, options);
    try {
      if (isInterrupted()) return;
      show(lab, output);
      process.exitCode = (await runThere(lab)).code;
    } finally {
      await removeLab(options.name, stateFolder());
    }
  });
}

async function execute([device, ...command]: readonly string[], { name }: LabCommandOptions): Promise<void> {
  if (device === undefined || command.length === 0)
    throw new InputError('asteroid lab exec takes a device and a program: asteroid lab exec nano-1 -- ip address.');
  process.exitCode = (await runOn(await findLab(name, stateFolder()), device, command)).code;
}

function settingsOf({ name, network, priority }: LabCommandOptions): LabSettings {
  if (network !== 'links' && network !== 'switch')
    throw new InputError(`--network ${network} must be links or switch.`);
  if (priority !== 'normal' && priority !== 'high')
    throw new InputError(`--priority ${priority} must be normal or high.`);
  return { name, network, priority, coreCount: availableParallelism() };
}

function show({ layout }: Lab, output: Output): void {
  const { name, network, devices, coordinator } = layout;
  output.json({
    event: 'lab-up',
    name,
    network,
    coordinator: { address: coordinator.address, device: coordinator.device ?? null },
    devices: devices.map(({ name: device, address, cores, memoryMiB }) => ({ device, address, cores, memoryMiB })),
  });
  if (output.isJson) return;
  const { terminal } = output;
  terminal.section(
    'Lab',
    `"${name}": ${counted(devices.length, 'device')}, ` +
      `${network === 'links' ? 'a link for each pair' : 'ports on a switch'}`,
  );
  for (const { name: device, address, cores, memoryMiB, bandwidthMbps } of devices) {
    const speeds = [...new Set(bandwidthMbps.filter((mbps) => mbps > 0))].sort((a, b) => a - b);
    terminal.section(
      'Devices',
      `${device.padEnd(16)}${address.padEnd(14)}${cores} cores  ${memoryMiB} MiB  ${speeds.join(' and ')} Mbps`,
    );
  }
  terminal.section(
    'Control',
    coordinator.device === undefined
      ? `${coordinator.address} (the coordinator, in a place of its own, its links unshaped)`
      : `the coordinator is on ${coordinator.device}`,
  );
}
