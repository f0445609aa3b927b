// The process of command-host.ts: for each message it runs a command and answers with what was printed. It ends when
// its parent is gone.

import { runCommandLine } from '../cli/command-line.ts';
import type { HostedCommand, HostedEnd } from './command-host.ts';

/** Runs a command with its output kept. */
async function runKept({ args, cwd }: HostedCommand): Promise<HostedEnd> {
  const kept = { stdout: '', stderr: '' };
  const streams = ['stdout', 'stderr'] as const;
  const originals = streams.map((name) => process[name].write);
  for (const name of streams) {
    process[name].write = (text: string | Uint8Array): boolean => {
      kept[name] += String(text);
      return true;
    };
  }
  process.chdir(cwd);
  const { exitCode, error } = await runCommandLine(args);
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.removeAllListeners(signal); // the command's
  streams.forEach((name, index) => {
    process[name].write = originals[index] as typeof process.stdout.write;
  });
  return { ...kept, stderr: kept.stderr + (error === undefined ? '' : `${error}\n`), code: exitCode };
}

process.on('message', (command: HostedCommand) => void runKept(command).then((end) => process.send?.(end)));
process.on('disconnect', () => process.exit(0));
