// A process that runs one command after the other, so that not each has to load the program. What a command leaves
// open there goes unnoticed: of each kind, one should run in a process of its own (command.ts).

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { type CommandEnd, commandEnvironment } from './command.ts';

/** What is asked of the process. */
export interface HostedCommand {
  readonly args: readonly string[];
  readonly cwd: string;
}

/** How a hosted command ended. */
export type HostedEnd = Omit<CommandEnd, 'signal'>;

export interface CommandHost {
  /**
   * Runs `asteroid ...args` in a folder, after those that were asked for before. Rejects when the process has ended.
   */
  run(command: HostedCommand): Promise<HostedEnd>;
  /** Ends the process. */
  close(): Promise<void>;
}

/** Starts the process, whose commands have their cache and state in `folder`, or where `environment` says. */
export function startCommandHost(folder: string, environment: Readonly<Record<string, string>> = {}): CommandHost {
  const env = { ...commandEnvironment(folder), ...environment };
  const child = fork(fileURLToPath(new URL('command-host-process.js', import.meta.url)), { env });
  const ended = new Promise<never>((_, reject) =>
    child.once('exit', () => reject(new Error('The process that runs commands has ended.'))),
  );
  ended.catch(() => {}); // reported to the caller of the command
  let last: Promise<unknown> = Promise.resolve();
  const runNow = async (command: HostedCommand): Promise<HostedEnd> => {
    const answered = once(child, 'message');
    child.send(command);
    const [end] = (await Promise.race([answered, ended])) as [HostedEnd];
    return end;
  };
  return {
    run(command) {
      const end = last.then(() => runNow(command));
      last = end.catch(() => {});
      return end;
    },
    async close() {
      if (child.exitCode !== null) return;
      const exit = once(child, 'exit');
      child.disconnect();
      await exit;
    },
  };
}
