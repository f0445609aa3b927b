// What a composite is: an operator that is written out in those of the table.

import type { Attribute, Node } from '../graph.ts';
import type { Writer } from './writer.ts';

/** An operator that is written out. */
export interface Composite {
  /** The least and the most inputs; the first `least` are required. */
  readonly inputs: readonly [least: number, most: number];
  /** The attributes that the operator has, with their types. */
  readonly attributes?: Readonly<Record<string, Attribute['type']>>;
  /** The least and the most dimensions of each input, where the operator wants certain ones. */
  readonly ranks?: readonly (readonly [least: number, most: number])[];
  /**
   * Inputs that need not be floats of the first one's type: labels, places, lengths, masks, or anything where it is 0.
   */
  readonly otherTypes?: readonly number[];
  /** The inputs whose values must be known before running. */
  readonly constantInputs?: readonly number[];
  /** The nodes that are written out, where not all of the operator's are. */
  readonly when?: (node: Node) => boolean;
  /** Writes the nodes; returns the values that are the node's outputs, undefined for those that nobody wants. */
  readonly write: (writer: Writer) => readonly (string | undefined)[];
}
