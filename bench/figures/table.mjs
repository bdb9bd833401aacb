// Formats rows as a Markdown table.

/** @param {readonly unknown[]} head @param {readonly (readonly unknown[])[]} rows */
export function table(head, rows) {
  return [head, head.map(() => '---'), ...rows]
    .map((cells) => `| ${cells.join(' | ')} |`)
    .join('\n');
}
