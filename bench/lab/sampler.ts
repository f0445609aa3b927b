// Runs in the switch's namespace of a lab: every 10 ms a line with the time and the bytes that each port has received
// so far, which its device has sent. Argument: the number of ports.

import { readFileSync } from 'node:fs';

const files = Array.from(
  { length: Number(process.argv[2]) },
  (_, index) => `/sys/class/net/port${index + 1}/statistics/rx_bytes`,
);
setInterval(() => {
  const values = [performance.now(), ...files.map((file) => Number(readFileSync(file, 'utf8')))];
  process.stdout.write(`${values.join(' ')}\n`);
}, 10);
process.stdout.on('error', () => process.exit());
