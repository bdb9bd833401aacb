// The report of a run on a GPU machine, as Markdown. Its data, complete, is report.json.

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
  for (const part of report.parts) lines.push('', `## ${part.name}`, ...partLines(part));
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
    lines.push(`- parameters ${results.params}, final loss ${results.finalLoss}`);
    for (const rank of results.ranks ?? []) {
      lines.push(`- rank ${rank.rank} on ${rank.device}: peak ${rank.peakBytes?.total} bytes`);
    }
  }
  if (name === 'bench' || !isOk || !results) lines.push('```', tail, '```');
  return lines;
}
