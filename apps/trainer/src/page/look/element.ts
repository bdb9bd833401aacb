// Makes elements. Text goes in as text and never as markup, because anybody may have written a
// model's text, paths and errors.

export type Attributes = Readonly<Record<string, string | number | boolean | undefined>>;
export type Child = Node | string;

/**
 * An element with attributes (true: without a value; undefined or false: left out) and children.
 */
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

/** A box of the page with a title, which names it, and what stands beside and below that. */
export function card(
  id: string,
  title: string,
  { beside = [], below }: { readonly beside?: readonly Child[]; readonly below: readonly Child[] },
): HTMLElement {
  const heading = element('h2', { id: `title-${id}` }, [title]);
  return element('section', { class: 'card', id, 'aria-labelledby': heading.id }, [
    element('header', {}, [heading, ...beside]),
    ...below,
  ]);
}

/** An entry of a legend, marked in a color of the page. */
export function swatch(color: string, name = 'swatch'): HTMLElement {
  const made = element('span', { class: name });
  made.style.setProperty('--swatch', color);
  return made;
}

/** A number as people read it, with the exact value for machines. */
export function dataElement(value: number | null | undefined, text: string): HTMLElement {
  return value === null || value === undefined
    ? element('span', {}, ['\u2013'])
    : element('data', { value }, [text]);
}
