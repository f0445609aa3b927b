// Decompression by node:zlib, for the parsers of training/data. Part of storage/: Node only; it may import training and
// below, and runtime, cli import it.

import { gunzipSync, inflateRawSync } from 'node:zlib';
import type { Inflate } from '../../training/data/source.ts';

/** Throws when the bytes are damaged or more than `maxBytes` would come out. */
export const inflate: Inflate = (bytes, format, maxBytes) => {
  const unpack = format === 'gzip' ? gunzipSync : inflateRawSync;
  return unpack(bytes, { maxOutputLength: maxBytes });
};
