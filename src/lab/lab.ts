// Makes, finds and removes a lab on this machine. Everything of a lab has its name, so that removing needs only that
// name, whatever was killed: namespaces asteroid-NAME-…, control groups asteroid-NAME, and a folder with what `run`
// needs. Needs Linux, root and iproute2.

import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, readdir, readFile, rm, rmdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { promisify } from 'node:util';
import { assert } from '../assert.ts';
import type { Cluster } from '../cluster/cluster.ts';
import { parseCluster } from '../cluster/validate.ts';
import { InputError, RunError } from '../errors.ts';
import { makeFolders, writeFileAtomically } from '../storage/atomic.ts';
import { nodeDisk } from '../storage/node/disk.ts';
import { type CgroupMounts, type CgroupPlan, cgroupPlan, findCgroups, type Priority } from './cgroups.ts';
import { type Command, networkCommands } from './commands.ts';
import { type LabLayout, labLayout, type NetworkForm } from './layout.ts';

/** A lab that is up. */
export interface Lab {
  readonly layout: LabLayout;
  readonly cgroups: CgroupPlan;
  /** Its files: a folder for each device, by its number, and for the coordinator. */
  readonly folder: string;
}

/** How to make a lab. */
export interface LabSettings {
  readonly name: string;
  readonly network: NetworkForm;
  readonly priority: Priority;
  readonly coreCount: number;
}

/** What the lab's file holds: all that its layout follows from. */
interface LabDocument extends LabSettings {
  readonly version: 1;
  readonly cluster: Cluster;
}

const run = promisify(execFile);

/** How long processes may take to die, and their groups to be empty. */
const removeMs = 10_000;
const lookAgainMs = 10;

/** The folder of a lab among the user's state. */
export function labFolder(stateFolder: string, name: string): string {
  return join(stateFolder, 'labs', name);
}

/**
 * Makes a lab. What was begun is removed when a step fails. Throws InputError for what cannot be built here, RunError
 * for a command that fails.
 */
export async function makeLab(cluster: Cluster, settings: LabSettings, stateFolder: string): Promise<Lab> {
  checkRights();
  const lab = await describe({ version: 1, cluster, ...settings }, stateFolder);
  const { name } = settings;
  if ((await namespaces(name)).length > 0)
    throw new InputError(
      `A lab called "${name}" is up already: remove it with asteroid lab down --name ${name}, or choose ` +
        'another --name.',
    );
  try {
    await makeFolders(lab.folder, nodeDisk);
    const document: LabDocument = { version: 1, cluster, ...settings };
    await writeFileAtomically(
      join(lab.folder, 'lab.json'),
      [new TextEncoder().encode(JSON.stringify(document))],
      nodeDisk,
    );
    for (const device of ['coordinator', ...lab.layout.devices.map((_, index) => String(index + 1))])
      await makeFolders(join(lab.folder, device), nodeDisk);
    for (const folder of lab.cgroups.folders) await mkdir(folder, { recursive: true });
    for (const [file, value] of lab.cgroups.writes) await writeLimit(file, value);
    for (const [file, value] of lab.cgroups.bursts) if (existsSync(file)) await writeLimit(file, value);
    for (const command of networkCommands(lab.layout)) await execute(command);
    return lab;
  } catch (error) {
    await removeLab(name, stateFolder);
    throw error;
  }
}

/** The lab of this name that is up. Throws InputError if there is none. */
export async function findLab(name: string, stateFolder: string): Promise<Lab> {
  checkRights();
  const none = new InputError(
    `There is no lab called "${name}": make it with asteroid lab up ` +
      `CLUSTER.yaml${name === 'lab' ? '' : ` --name ${name}`}.`,
  );
  let document: LabDocument;
  try {
    document = JSON.parse(await readFile(join(labFolder(stateFolder, name), 'lab.json'), 'utf8')) as LabDocument;
  } catch {
    throw none; // absent, or damaged: `up` and `down` fix both
  }
  if (document.version !== 1 || (await namespaces(name)).length === 0) throw none;
  return describe({ ...document, cluster: parseCluster(document.cluster) }, stateFolder);
}

/**
 * Removes all that has the lab's name: processes, namespaces, control groups, files. True if there was anything.
 */
export async function removeLab(name: string, stateFolder: string): Promise<boolean> {
  checkRights();
  const groups = await groupsOf(name);
  const spaces = await namespaces(name);
  const folder = labFolder(stateFolder, name);
  const hasFolder = await readdir(folder).then(
    () => true,
    () => false,
  );
  await endProcesses(() => processesIn(groups, spaces), `the lab "${name}"`);
  for (const space of spaces) await execute(['ip', 'netns', 'delete', space]);
  for (const group of groups) await removeGroup(group);
  await rm(folder, { recursive: true, force: true });
  await rmdir(dirname(folder)).catch(() => {}); // there are other labs
  return spaces.length + groups.length > 0 || hasFolder;
}

/** Ends what still runs on the devices of a lab, at once. */
export async function endDevices({ layout, cgroups }: Lab): Promise<void> {
  const groups = Object.values(cgroups.devices).flatMap((files) =>
    files.map((file) => file.replace(/\/cgroup\.procs$/, '')),
  );
  await endProcesses(() => processesIn(groups, []), `the devices of the lab "${layout.name}"`);
}

/**
 * The command line that runs a command on a device, or as the coordinator: in its control groups, its network, and
 * under a host name of its own, since devices of one host name share their memory.
 */
export function commandOn({ layout, cgroups }: Lab, device: string, command: readonly string[]): Command {
  const index = layout.devices.findIndex(({ name }) => name === device);
  const isCoordinator = device === 'coordinator' && index < 0;
  const place = isCoordinator ? (layout.coordinator.device ?? device) : device;
  const namespace = isCoordinator ? layout.coordinator.namespace : layout.devices[index]?.namespace;
  if (namespace === undefined) {
    const known = layout.devices.map(({ name }) => `"${name}"`).join(', ');
    throw new InputError(`The lab "${layout.name}" has no device "${device}": name one of ${known}, or "coordinator".`);
  }
  const files = place === 'coordinator' && index < 0 ? cgroups.coordinator : cgroups.devices[place];
  assert(files !== undefined && files.length > 0, 'each device has its groups');
  const enter = `${files.map((file) => `echo $$ > '${file}'`).join(' && ')} && exec "$@"`;
  const named = 'hostname "$0" && exec "$@"';
  // `ip netns exec` would hide the control groups, by which a device knows what it may use of its processor.
  return [
    'sh',
    '-c',
    enter,
    'sh',
    'nsenter',
    `--net=/var/run/netns/${namespace}`,
    'unshare',
    '--uts',
    'sh',
    '-c',
    named,
    namespace,
    ...command,
  ];
}

async function describe({ cluster, ...settings }: LabDocument, stateFolder: string): Promise<Lab> {
  const layout = labLayout(cluster, settings);
  return {
    layout,
    cgroups: cgroupPlan(layout, await mounts(), settings.priority),
    folder: labFolder(stateFolder, settings.name),
  };
}

function checkRights(): void {
  if (process.platform !== 'linux')
    throw new InputError('A lab is made of Linux network namespaces and control groups: run it on Linux.');
  if (process.getuid?.() !== 0)
    throw new InputError('A lab makes network namespaces and control groups, which needs root: run it with sudo.');
}

async function mounts(): Promise<CgroupMounts> {
  return findCgroups(await readFile('/proc/mounts', 'utf8'));
}

/** Namespaces that a lab of this name has, or has left. */
async function namespaces(name: string): Promise<string[]> {
  const own = new RegExp(`^asteroid-${name}-(\\d+|switch|coordinator)$`);
  const listed = await execute(['ip', 'netns', 'list']);
  return listed.split('\n').flatMap((line) => {
    const [space = ''] = line.split(' ');
    return own.test(space) ? [space] : [];
  });
}

/** Control groups of the lab that are there, children before parents. */
async function groupsOf(name: string): Promise<string[]> {
  const found = await mounts();
  const parents = (found.version === 1 ? [found.cpu, found.memory] : [found.root]).map((root) =>
    join(root, `asteroid-${name}`),
  );
  const groups: string[] = [];
  for (const parent of parents) {
    const entries = await readdir(parent, { withFileTypes: true }).catch(() => undefined); // not there
    if (entries === undefined) continue;
    groups.push(...entries.filter((entry) => entry.isDirectory()).map((entry) => join(parent, entry.name)), parent);
  }
  return groups;
}

async function processesIn(groups: readonly string[], spaces: readonly string[]): Promise<number[]> {
  const texts: string[] = [];
  // A group may have gone meanwhile.
  for (const group of groups) texts.push(await readFile(join(group, 'cgroup.procs'), 'utf8').catch(() => ''));
  for (const space of spaces) texts.push(await execute(['ip', 'netns', 'pids', space]));
  return [...new Set(texts.flatMap((text) => text.split('\n').filter((line) => line !== '')).map(Number))];
}

/** Kills until none is left: a process may start another one meanwhile. */
async function endProcesses(list: () => Promise<number[]>, what: string): Promise<void> {
  const endMs = performance.now() + removeMs;
  for (let left = await list(); left.length > 0; left = await list()) {
    if (performance.now() > endMs) throw new RunError(`Processes of ${what} do not end: ${left.join(', ')}.`);
    for (const id of left) kill(id);
    await setTimeout(lookAgainMs);
  }
}

function kill(id: number): void {
  try {
    process.kill(id, 'SIGKILL');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error; // it has ended by itself
  }
}

/** A group whose last process has just died is busy for a moment. */
async function removeGroup(group: string): Promise<void> {
  const endMs = performance.now() + removeMs;
  for (;;) {
    try {
      return await rmdir(group);
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code === 'ENOENT') return;
      if (code !== 'EBUSY' || performance.now() > endMs)
        throw new RunError(`${group} cannot be removed: ${(error as Error).message}.`);
      await setTimeout(lookAgainMs);
    }
  }
}

async function writeLimit(file: string, value: string): Promise<void> {
  try {
    await writeFile(file, value);
  } catch (error) {
    throw new RunError(`The control group cannot be set (${value} in ${file}): ${(error as Error).message}.`);
  }
}

async function execute([program, ...args]: Command): Promise<string> {
  try {
    return (await run(program, args, { encoding: 'utf8' })).stdout;
  } catch (error) {
    const { code, stderr = '' } = error as NodeJS.ErrnoException & { readonly stderr?: string };
    if (code === 'ENOENT') throw new InputError(`A lab needs the program ${program}: install iproute2.`);
    throw new RunError(`${program} ${args.join(' ')}: ${stderr.trim() || (error as Error).message}.`);
  }
}
