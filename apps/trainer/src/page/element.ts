// Makes elements. Text goes in as text and nothing as markup: a model's words, paths and errors are
// anybody's.

export type Attributes = Readonly<Record<string, string | number | boolean | undefined>>;
export type Child = Node | string;

/** An element with attributes (true: without a value; undefined, false: none) and children. */
export function element<K extends keyof HTMLElementTagNameMap>(
  name: K,
  attributes: Attributes = {},
  children: readonly Child[] = [],
): HTMLElementTagNameMap[K] {
  const made = document.createElement(name);
  setAttributes(made, attributes);
  made.append(...children);
  return made;
}

export function svg(
  name: string,
  attributes: Attributes = {},
  children: readonly Child[] = [],
): SVGElement {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  setAttributes(made, attributes);
  made.append(...children);
  return made;
}

function setAttributes(target: Element, attributes: Attributes): void {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) {
      target.setAttribute(key, value === true ? '' : String(value));
    }
  }
}

/** A number as people read it, with all of it where machines look. */
export function dataElement(value: number | null | undefined, text: string): HTMLElement {
  return value === null || value === undefined
    ? element('span', {}, ['\u2013'])
    : element('data', { value }, [text]);
}
