// A binary heap: the earliest of many, in logarithmic time.

export interface Heap<Element> {
  push(element: Element): void;
  /** Removes and returns the first element; undefined when there is none. */
  pop(): Element | undefined;
}

/** An empty heap; `before(a, b)` says whether a comes strictly first, and must be a strict weak order. */
export function createHeap<Element>(before: (a: Element, b: Element) => boolean): Heap<Element> {
  const items: Element[] = [];
  return {
    push(element) {
      let index = items.length;
      items.push(element);
      while (index > 0) {
        const parent = (index - 1) >> 1;
        const above = items[parent] as Element;
        if (!before(element, above)) break;
        items[index] = above;
        index = parent;
      }
      items[index] = element;
    },
    pop() {
      const first = items[0];
      const last = items.pop();
      if (items.length === 0 || last === undefined) return first;
      let index = 0;
      for (;;) {
        let child = 2 * index + 1;
        if (child >= items.length) break;
        if (child + 1 < items.length && before(items[child + 1] as Element, items[child] as Element)) child++;
        if (!before(items[child] as Element, last)) break;
        items[index] = items[child] as Element;
        index = child;
      }
      items[index] = last;
      return first;
    },
  };
}
