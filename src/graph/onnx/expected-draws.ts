// Replaces random decisions in inference by their mean. Exporters write stochastic depth, and sometimes dropout, as U =
// RandomUniformLike(s), kept = Cast(U < p), y = x · kept / p. The mean of `kept` is p, which makes y = x. Bernoulli(p)
// is the same in one node.

/** The common fields of nodes in graphs and in files. */
interface AnyNode {
  readonly operator: string;
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
}

/**
 * A node with a random output of 0 or 1: its mean is `chance`, in the shape of `like` (if undefined, of `chance`
 * itself).
 */
interface Decision {
  readonly chance: string;
  readonly like: string | undefined;
}

/**
 * The random decisions among nodes of ONNX's default domain, by position; undefined for other nodes. Draws must be
 * uniform in [0, 1).
 */
export function randomDecisions(
  nodes: readonly (AnyNode | undefined)[],
  isStandard: (index: number) => boolean,
): ReadonlyMap<number, Decision> {
  const makers = new Map<string, number>();
  nodes.forEach((node, index) => {
    for (const output of node?.outputs ?? []) makers.set(output, index);
  });
  const maker = (value: string | undefined): AnyNode | undefined => nodes[makers.get(value ?? '') ?? -1];
  const drawn = (value: string | undefined): string | undefined => {
    const node = maker(value);
    const standard = node?.operator === 'RandomUniformLike' && isStandard(makers.get(value ?? '') as number);
    return standard ? node.inputs[0] : undefined;
  };
  const decisions = new Map<number, Decision>();
  nodes.forEach((node, index) => {
    if (node?.operator === 'Bernoulli') decisions.set(index, { chance: node.inputs[0] ?? '', like: undefined });
    const comparison = node?.operator === 'Cast' ? maker(node.inputs[0]) : undefined;
    const [a, b] = comparison?.inputs ?? [];
    const less = comparison?.operator === 'Less' || comparison?.operator === 'LessOrEqual';
    const greater = comparison?.operator === 'Greater' || comparison?.operator === 'GreaterOrEqual';
    const [draw, chance] = less ? [drawn(a), b] : greater ? [drawn(b), a] : [undefined, undefined];
    if (draw !== undefined && chance !== undefined) decisions.set(index, { chance, like: draw });
  });
  return decisions;
}
