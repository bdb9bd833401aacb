// What Python's str() writes of plain data, as a template in Python writes `tool | string`.

/** Such as `{'name': 'light', 'strict': True, 'of': None}`. */
export function pythonText(value: unknown): string {
  if (typeof value === 'string') {
    return quoted(value);
  }
  if (Array.isArray(value)) {
    return `[${value.map(pythonText).join(', ')}]`;
  }
  if (typeof value === 'object' && value !== null) {
    const entries = Object.entries(value).map(([key, own]) => `${quoted(key)}: ${pythonText(own)}`);
    return `{${entries.join(', ')}}`;
  }
  return value === true ? 'True' : value === false ? 'False' : value === null ? 'None' : `${value}`;
}

const ESCAPES: Readonly<Record<string, string>> = { '\n': '\\n', '\r': '\\r', '\t': '\\t' };

/** In single quotes, unless the text has those alone. */
function quoted(text: string): string {
  const mark = text.includes("'") && !text.includes('"') ? '"' : "'";
  const body = text
    .replaceAll(/[\\\n\r\t]/g, (char) => ESCAPES[char] ?? '\\\\')
    .replaceAll(mark, `\\${mark}`);
  return `${mark}${body}${mark}`;
}
