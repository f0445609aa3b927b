// Numbers with their units, as a person reads them: on the terminal and in the window.

/** "1 h 02 min", "3 min 07 s", "42 s", "4.2 s", "12 ms". */
export function duration(seconds: number): string {
  if (!Number.isFinite(seconds)) return '…';
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const two = (value: number): string => String(value).padStart(2, '0');
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
}

/** "840 Mbps", "12.4 Gbps". */
export function bandwidth(mbps: number): string {
  return mbps >= 999.5 ? `${(mbps / 1000).toFixed(1)} Gbps` : `${mbps.toFixed(mbps < 9.95 ? 1 : 0)} Mbps`;
}

/** "640 MiB", "23.5 GiB". */
export function memory(mib: number): string {
  return mib < 10240 ? `${mib.toFixed(mib < 9.95 ? 2 : mib < 99.5 ? 1 : 0)} MiB` : `${(mib / 1024).toFixed(1)} GiB`;
}

/** "237,514". */
export function grouped(count: number): string {
  return count.toLocaleString('en-US');
}

/** A count with its noun: "1 layer", "3 layers". */
export function counted(count: number, noun: string): string {
  return `${grouped(count)} ${noun}${count === 1 ? '' : /(?:s|ch)$/.test(noun) ? 'es' : 's'}`;
}
