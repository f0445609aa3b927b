// What each mode of training would cost, as a table on the terminal.

import type { ModeChoice, PlannedMode } from '../planner/modes.ts';
import { memory, type Terminal } from './terminal.ts';

/** One line a mode, and the choice. */
export function printModes(modes: ModeChoice['modes'], chosen: PlannedMode, terminal: Terminal): void {
  const rows = modes.map((each): string[] => {
    if ('refusal' in each) return [each.mode, each.refusal];
    const [device, mib] = Object.entries(each.versionsMiB).reduce((most, other) => (other[1] > most[1] ? other : most));
    const versions = mib === 0 ? 'none' : `${memory(mib)} on ${device}`;
    const peak = Math.max(...Object.values(each.peakMemoryMiB));
    return [
      ...[each.mode, `${each.roundMs.toFixed(1)} ms`, each.samplesPerS.toFixed(1)],
      ...[`${(100 * each.bubbleShare).toFixed(0)} %`, `${each.staleness}`, versions, memory(peak)],
    ];
  });
  const head = ['mode', 'a round', 'samples/s', 'bubbles', 'staleness', 'versions', 'memory at most'];
  const widths = head.map((title, column) =>
    Math.max(title.length, ...rows.filter((row) => row.length > 2).map((row) => row[column]?.length ?? 0)),
  );
  for (const row of [head, ...rows])
    terminal.section(
      'Modes',
      row
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join('  ')
        .trimEnd(),
    );
  terminal.section('Chosen', chosen);
}
