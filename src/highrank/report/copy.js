for (const button of document.querySelectorAll(".copy")) {
  button.hidden = false;
  button.onclick = async () => {
    const code = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(code.textContent.replace(/\u00a0/g, " "));
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
}
