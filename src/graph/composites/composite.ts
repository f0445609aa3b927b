// The interface of composites: operators that are expanded to operators of the table.

import type { Attribute, Node } from '../graph.ts';
import type { Writer } from './writer.ts';

/** An operator that is expanded to others. */
export interface Composite {
  /** The least and the most inputs; the first `least` are required. */
  readonly inputs: readonly [least: number, most: number];
  /** The attributes that the operator has, with their types. */
  readonly attributes?: Readonly<Record<string, Attribute['type']>>;
  /** The least and the most dimensions of each input, if the operator restricts them. */
  readonly ranks?: readonly (readonly [least: number, most: number])[];
  /**
   * Inputs that need not be floats of the first one's type: labels, indices, lengths, masks; 0 means that any type is
   * allowed.
   */
  readonly otherTypes?: readonly number[];
  /** The inputs whose values must be known before running. */
  readonly constantInputs?: readonly number[];
  /** Selects the nodes that are expanded, if not all of the operator's are. */
  readonly when?: (node: Node) => boolean;
  /** Writes the nodes; returns the values of the node's outputs, undefined for unused ones. */
  readonly write: (writer: Writer) => readonly (string | undefined)[];
}
