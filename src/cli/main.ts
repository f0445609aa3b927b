#!/usr/bin/env node
// The command `asteroid`. Exits 0 when done, 1 when it failed, 2 when the input is wrong, 130 after Ctrl-C.

import { endWithParent, needsComputeProcess, runComputeProcess } from './compute-process.ts';

/** The exit code that shells give a program that SIGPIPE ended. */
const readerGone = 141;

if (needsComputeProcess(process.argv.slice(2), process.env, process.platform))
  process.exitCode = await runComputeProcess();
else await runHere();

async function runHere(): Promise<void> {
  endWithParent();
  const { runCommandLine } = await import('./command-line.ts');

  // The reader of our output has gone (`| head`): a command that handles SIGTERM is asked to stop, once; any other ends
  // silently with SIGPIPE's code.
  process.stdout.once('error', () => {
    if (process.listenerCount('SIGTERM') === 0) process.exit(readerGone);
    process.kill(process.pid, 'SIGTERM');
  });
  process.stdout.on('error', () => {});

  const { exitCode, error } = await runCommandLine(process.argv.slice(2));
  if (error !== undefined) process.stderr.write(`${error}\n`);
  process.exitCode = exitCode;
}
