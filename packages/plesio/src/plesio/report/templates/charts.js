// Unpacks Plotly's script, which the page has within it, and draws each chart from the data beside it.
(async () => {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), letter => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  for (const data of document.querySelectorAll(".plot-data")) {
    const plot = data.parentElement.querySelector(".plot"), chart = JSON.parse(data.textContent);
    Plotly.newPlot(plot, chart.data, chart.layout, { displaylogo: false, displayModeBar: false, responsive: true });
  }
})().catch(error => {
  const words = document.createElement("p");
  words.textContent = "The pictures need a browser of 2023 or later.";
  document.querySelector("header").append(words);
  throw error;
});
