// A link for one more browser, with its QR code.

import { encode } from 'uqr';
import type { Invitation } from '../messages.ts';

/** The link with the rows of its code. */
export function invitation(url: string): Invitation {
  const { data } = encode(url, { border: 2 });
  return { url, qr: data.map((row) => row.map((isDark) => (isDark ? '1' : '0')).join('')) };
}
