// Network namespaces of the tests' own: the `ip` command, and why they cannot be had.

import { spawnSync } from 'node:child_process';

/** Runs `ip ...args`; what went wrong, or undefined. */
export function ip(...args: readonly string[]): string | undefined {
  const { status, stderr, error } = spawnSync('ip', args, { encoding: 'utf8' });
  return status === 0 ? undefined : `ip ${args.join(' ')}: ${(error?.message ?? stderr).trim()}`;
}

/** Why namespaces cannot be had here, or false. */
export function missingNamespaces(): string | false {
  if (process.platform !== 'linux') return 'network namespaces need Linux';
  if (process.getuid?.() !== 0) return 'network namespaces need root';
  const probe = `asteroid-probe-${process.pid}`;
  const reason = ip('netns', 'add', probe);
  if (reason !== undefined) return `network namespaces need iproute2 and the right to make them (${reason})`;
  ip('netns', 'delete', probe);
  return false;
}
