// Formats the report of a run on a GPU machine as Markdown. Its complete data is in report.json.

export function renderReport(report) {
  const lines = [
    `# GPU report, ${report.date.slice(0, 10)}`,
    '',
    `Commit ${report.commit.slice(0, 12)}, Node ${report.node}, ${report.cores} cores, ` +
      `${Math.round(report.memoryBytes / 2 ** 30)} GiB. Made by \`tooling/gpu/run.sh\`.`,
    '',
    '## Adapter',
    ...report.adapters.flatMap(adapterLines),
    ...(report.adapters.length === 0 ? ['None that Dawn accepts.'] : []),
    '',
    'Drivers tried:',
    ...report.driversTried.map((text) => `- ${text}`),
    '',
    '## Parts',
    '| part | result | seconds |',
    '| --- | --- | --- |',
    ...report.parts.map(
      ({ name, isOk, ended, seconds }) =>
        `| ${name} | ${isOk ? 'ok' : `ended with ${ended}`} | ${seconds.toFixed(1)} |`,
    ),
  ];
  for (const part of report.parts) {
    lines.push('', `## ${part.name}`, ...partLines(part));
  }
  return `${lines.join('\n')}\n`;
}

function adapterLines({ vendor, architecture, description, isSoftware, features, limits }) {
  return [
    `- ${vendor} ${architecture}, ${description}, ${isSoftware ? 'software' : 'hardware'}`,
    `- features: ${features.join(', ')}`,
    `- limits: ${Object.entries(limits)
      .map(([name, value]) => `${name} ${value}`)
      .join(', ')}`,
  ];
}

function partLines({ name, isOk, results, tail }) {
  const lines = [];
  if (name.startsWith('op tests') && results) {
    lines.push(`${results.passed} passed, ${results.failed.length} failed on ${results.device}.`);
    lines.push(...results.failed.map((one) => `- ${one.name}: ${one.message.split('\n')[0]}`));
  }
  if (name.startsWith('trainer') && results) {
    const losses = results.steps.map(({ loss }) => loss);
    const tokens = median(results.steps.map(({ tokensPerSecond }) => tokensPerSecond));
    const ms = median(results.steps.map(({ stepMs }) => stepMs));
    lines.push(
      `- ${results.params} parameters on ${results.device}`,
      `- loss ${losses[0]?.toFixed(4)} to ${losses.at(-1)?.toFixed(4)} in ${losses.length} steps`,
      `- median step ${ms.toFixed(1)} ms, ${Math.round(tokens)} tokens a second`,
    );
    for (const rank of results.ranks ?? []) {
      lines.push(`- rank ${rank.rank} on ${rank.device}: peak ${rank.peakBytes?.total} bytes`);
    }
  }
  // The bench's own report is included with its headings two levels lower.
  if (name.startsWith('bench') && results) {
    lines.push(results.replaceAll(/^#/gm, '###').trimEnd());
  }
  if (!isOk) {
    lines.push('```', tail, '```');
  }
  return lines;
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[sorted.length >> 1] ?? Number.NaN;
}
